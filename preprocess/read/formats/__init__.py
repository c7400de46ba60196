"""The formats that edges come in: one adapter a file, chosen by the file's ending."""

from __future__ import annotations

from pathlib import Path

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess.read.formats import matrix_market, scipy_matrix, table, text, torch_file
from hongtu.preprocess.read.formats.text_lines import ending_of
from hongtu.preprocess.read.graph import RawGraph

ENDINGS = (*text.ENDINGS, *table.ENDINGS, *matrix_market.ENDINGS, *scipy_matrix.ENDINGS, *torch_file.ENDINGS)
_OTHER_GRAPHS = {
    ".graphml": "networkx.read_graphml(path)", ".gml": "networkx.read_gml(path)", ".gexf": "networkx.read_gexf(path)",
    ".net": "networkx.read_pajek(path)", ".adjlist": "networkx.read_adjlist(path)",
    ".gpickle": "pickle.load(open(path, 'rb'))", ".pkl": "pickle.load(open(path, 'rb'))",
    ".bin": "dgl.load_graphs(path)[0][0]", ".dgl": "dgl.load_graphs(path)[0][0]",
    ".mat": "scipy.io.loadmat(path)[NAME]",
}  # fmt: skip
_TABLES = {
    ".jsonl": "json(path, lines=True)", ".ndjson": "json(path, lines=True)",
    ".xlsx": "excel(path)", ".h5": "hdf(path)", ".hdf5": "hdf(path)",
}  # fmt: skip
_REMEDIES = {ending: f"unpack it first: {tool}" for ending, tool in (
    (".bz2", "bunzip2"), (".xz", "unxz"), (".zst", "unzstd"), (".zip", "unzip"), (".tar", "tar xf"), (".tgz", "tar xf"),
)} | {
    ending: f"pass hongtu.preprocess_graph(data={read}, artifact=...)" for ending, read in _OTHER_GRAPHS.items()
} | {
    ending: f"convert it first: pandas.read_{read}.to_csv('edges.csv', index=False)" for ending, read in _TABLES.items()
} | {
    ".graph": "its lines are METIS's, a vertex each: save it as a scipy matrix (.npz), or as edges",
    ".json": "convert it first: pandas.read_json(path).to_csv('edges.csv', index=False); of networkx's pass "
    "hongtu.preprocess_graph(data=networkx.node_link_graph(json.load(open(path))), artifact=...)",
    ".npy": "pass its directory, with features, labels and masks beside edges.npy",
}  # fmt: skip
PACKED = (*text.ENDINGS, *matrix_market.ENDINGS)  # may end in .gz


def open_edges(path: Path, config: PreprocessConfig) -> RawGraph:
    """The graph in one file, or in a folder of a table's parts.

    Raises:
        InputError: when no adapter knows its ending, or the one that does refuses it.
    """
    if path.is_dir():  # of parts
        return table.open_table(path, config.columns)
    ending, packed = ending_of(path), path.suffix.lower() == ".gz"
    if ending not in (PACKED if packed else ENDINGS):
        remedy = _REMEDIES.get(ending, "if it has an edge on each line, rename it to .txt")
        raise InputError(f"{path}: unknown format {ending!r}, expected {', '.join(ENDINGS)}, or a directory; {remedy}")
    if config.columns is not None and ending not in (*text.ENDINGS, *table.ENDINGS):
        raise InputError(f"{path}: --columns is for edge lists and tables; leave it out")
    if ending in text.ENDINGS:
        return text.open_text(path, config.columns)
    if ending in table.ENDINGS:
        return table.open_table(path, config.columns)
    if ending in matrix_market.ENDINGS:
        return matrix_market.open_matrix_market(path)
    if ending in scipy_matrix.ENDINGS:
        return scipy_matrix.open_scipy_matrix(path)
    return torch_file.open_torch_file(path, config)
