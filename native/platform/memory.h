// Pages and aligned blocks of host memory.
//
// A page of a sparse mapping takes memory once it is touched, and no memory is set aside for it
// before. Linux and macOS work like that. On Windows a page must be committed before it is touched:
// touching another one raises an exception, whose handler commits it (windows.cc). A system call
// that is given such a page fails there.
#ifndef CISTERN_PLATFORM_MEMORY_H_
#define CISTERN_PLATFORM_MEMORY_H_

#include <cstdint>

namespace cistern {

std::uint64_t PageBytes();

// New pages of zeros. Null if the system has no memory or no addresses left.
void* MapPages(std::uint64_t bytes);
// The same as a sparse mapping, which core dumps leave out, at a multiple of the alignment: a power of
// two.
void* MapSparsePages(std::uint64_t bytes, std::uint64_t alignment);
// Gives the memory of whole pages of a sparse mapping back: they are zeros again.
void DiscardPages(std::uint64_t address, std::uint64_t bytes);

// Addresses without memory, which may not be touched, at a multiple of the alignment: a power of two.
// Null if there are not as many left.
void* ReservePages(std::uint64_t bytes, std::uint64_t alignment);
// The same at one address. Null if any of it is taken, or the system cannot say.
void* ReservePagesAt(std::uint64_t address, std::uint64_t bytes);
// Lets whole reserved pages be read and written; new ones are zeros. False if there is no memory.
bool AllowAccess(std::uint64_t address, std::uint64_t bytes);
// They may only be read. False if the system refuses.
bool AllowReading(std::uint64_t address, std::uint64_t bytes);
// They may not be touched, and keep their contents. False if the system refuses.
bool DenyAccess(std::uint64_t address, std::uint64_t bytes);
// Gives the memory of whole reserved pages back: they are as at first. False if the system refuses.
bool ResetPages(std::uint64_t address, std::uint64_t bytes);

// New pages of zeros that have their memory already: up to this many threads clear them side by side, since that is most
// of the time that pinning takes. Null if the machine has no such memory left. The memory is that of a NUMA node, if it is not -1 and
// has enough, unless the process has said where its memory should be.
void* MapPopulatedPages(std::uint64_t bytes, unsigned threads, int node = -1);
// What each of its threads takes at a time: no thread is without work if there are 4 MiB for each.
std::uint64_t PopulatedPieceBytes(std::uint64_t bytes, unsigned threads);
// Its parts: addresses for whole pages, of a large size if there are enough, that no child process shares; and memory
// for some of them, which is not touched elsewhere meanwhile. False if there is none. In between, the node that the memory comes from is
// a wish, which nothing fails for.
void* MapPagesToPin(std::uint64_t bytes);
void PreferNode(std::uint64_t address, std::uint64_t bytes, int node);
bool PopulatePages(std::uint64_t address, std::uint64_t bytes);
inline void TouchPages(std::uint64_t address, std::uint64_t bytes) {
  for (std::uint64_t page = address; page < address + bytes; page += PageBytes()) *reinterpret_cast<volatile char*>(page) = 0;
}

// Ends what one of the functions above returned, as a whole.
void UnmapPages(void* address, std::uint64_t bytes);

// Memory of the C library, at a multiple of the alignment: a power of two, and a multiple of a
// pointer's size. Null if there is none.
void* AllocateAligned(std::uint64_t bytes, std::uint64_t alignment);
void FreeAligned(void* pointer);

}  // namespace cistern

#endif  // CISTERN_PLATFORM_MEMORY_H_
