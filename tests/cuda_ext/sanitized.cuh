// A program that launches kernels on threads of the processor under ThreadSanitizer, one launch after another, as its
// input says; it answers with what has become of memory. Ends where threads race. `g++ -fsanitize=thread -include ...`.
#pragma once
#define THREADS_AT_ONCE 4
#include "cpu_shim.cuh"

#include <cstdio>
#include <cstdlib>
#include <string>

#include <dlfcn.h>

template <class T>
static std::vector<T> take(std::size_t count) {
    std::vector<T> found(count);
    if (std::fread(found.data(), sizeof(T), count, stdin) != count) std::exit(0);
    return found;
}

// Memory with what was at ``address`` in the process that asks, as far from a line as there.
struct Copy {
    long long address, nbytes;
    std::vector<char> memory;
    char* begin;
    explicit Copy(const long long* head) : address(head[0]), nbytes(head[1]), memory(nbytes + 256) {
        begin = memory.data() + (address - (long long)memory.data()) % 128 + 128;
        const std::vector<char> content = take<char>(nbytes);
        std::memcpy(begin, content.data(), nbytes);
    }
};

int main() {
    for (;;) {
        const std::vector<long long> counts = take<long long>(3);  // of the name's bytes, arguments and pieces of memory
        const std::vector<char> name = take<char>(counts[0]);
        const std::vector<unsigned> shape = take<unsigned>(6);
        std::vector<long long> args = take<long long>(counts[1]);
        const std::vector<long long> heads = take<long long>(2 * counts[2]);
        std::vector<Copy> copies;
        for (int k = 0; k < counts[2]; k++) copies.emplace_back(&heads[2 * k]);
        for (long long& arg : args)
            for (const Copy& copy : copies)
                if (copy.address <= arg && arg < copy.address + copy.nbytes) {
                    arg = (long long)copy.begin + arg - copy.address;
                    break;
                }
        using Kernel = int (*)(const unsigned*, const long long*, int, int);
        const auto kernel = (Kernel)dlsym(RTLD_DEFAULT, (std::string(name.data(), name.size()) + "_on_cpu").c_str());
        const int status = kernel ? kernel(shape.data(), args.data(), (int)args.size(), 0) : -1;
        std::fwrite(&status, sizeof(status), 1, stdout);
        for (const Copy& copy : copies) std::fwrite(copy.begin, 1, copy.nbytes, stdout);
        std::fflush(stdout);
    }
}
