// For systems without files that have no name and that other processes can open.
#ifndef __linux__

#include "platform/memory_file.h"

namespace cistern {

MemoryFile& MemoryFile::operator=(MemoryFile&&) noexcept { return *this; }
MemoryFile::~MemoryFile() = default;
bool MemoryFile::Lock(std::uint64_t) const { return false; }
void MemoryFile::Unlock(std::uint64_t) const {}
bool MemoryFile::IsLocked(std::uint64_t) const { return true; }
std::int64_t MemoryFile::Size() const { return -1; }
void* MemoryFile::Map(std::uint64_t, std::uint64_t) const { return nullptr; }
bool MemoryFile::MapAt(std::uint64_t, std::uint64_t, std::uint64_t) const { return false; }
bool MemoryFile::MapSparseAt(std::uint64_t, std::uint64_t) { return false; }
bool MemoryFile::WriteTouched(std::uint64_t, std::uint64_t, std::uint64_t) const { return false; }
bool MemoryFile::ReadWritten(std::uint64_t, std::uint64_t, std::uint64_t) const { return false; }
void MemoryFile::Discard(std::uint64_t, std::uint64_t) const {}
int MemoryFile::Duplicate() const { return -1; }

MemoryFile CreateMemoryFile(const char*, std::uint64_t) { return {}; }
OpenResult OpenMemoryFile(std::int32_t, std::int32_t, const char*, std::uint64_t, MemoryFile*) { return OpenResult::kFailed; }
OpenResult AdoptMemoryFile(int, std::uint64_t, MemoryFile*) { return OpenResult::kFailed; }
OpenResult FetchDescriptor(std::int32_t, std::int32_t, int*) { return OpenResult::kFailed; }

bool FillRandom(void*, std::size_t) { return false; }

std::int32_t CurrentProcessId() { return 0; }
std::optional<std::uint64_t> StartOfProcess(std::int32_t) { return std::nullopt; }
bool HasProcessEnded(std::int32_t, std::uint64_t) { return false; }

}  // namespace cistern

#endif
