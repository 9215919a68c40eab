// Memory that outlives its process: one handle of virtual memory, mapped to addresses of its own, and a descriptor of it that
// other processes can map. From then on it is virtual memory like any other.
#include <memory>
#include <utility>

#include "addon/address_space.h"
#include "addon/bindings.h"
#include "addon/host_functions.h"
#include "addon/memory.h"
#include "addon/orphans.h"
#include "addon/peers.h"
#include "addon/virtual_memory.h"
#include "platform/memory_file.h"

namespace cistern {
namespace {

struct LastingRequest {
  int device;
  std::uint64_t bytes;
  std::uint64_t address;  // 0: any
  bool only_there;
  int descriptor;  // -1: new memory
};

Status ReadRequest(Environment& environment, const Napi::CallbackInfo& info, LastingRequest* request) {
  double descriptor;
  if (!ReadInt(info[0], &request->device) || !ReadInteger(info[1], &request->bytes) || request->bytes == 0) return kInvalidArgument;
  if (!ReadInteger(info[2], &request->address) || !ReadBoolean(info[3], &request->only_there)) return kInvalidArgument;
  if (!ReadNumber(info[4], &descriptor)) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  if (!environment.HasDevice(request->device)) return kInvalidArgument;
  request->descriptor = -1;
  if (descriptor == 0) return kSuccess;
  std::shared_ptr<MemoryFile>* found;
  const Status status = environment.descriptors.Find(descriptor, &found);
  if (status == kSuccess) request->descriptor = (*found)->descriptor();
  return status;
}

Status CheckSupport(Environment& environment, int device) {
  for (const int attribute : {kAttributeVirtualMemoryManagementSupported, kAttributeHandleTypePosixFileDescriptorSupported}) {
    int is_supported = 0;
    const Status status = environment.Counted<Call::kDeviceGetAttribute>(&is_supported, int{attribute}, environment.DriverDevice(device));
    if (status != kSuccess) return status;
    if (is_supported == 0) return kErrorNotSupported;
  }
  return kSuccess;
}

// Addresses that are freed again unless something takes them over.
class Reserved {
 public:
  explicit Reserved(Environment& environment) : environment_(environment) {}
  ~Reserved() { Free(); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  // kInUse if they must be where they were asked for, and are not.
  Status Reserve(std::uint64_t bytes, std::uint64_t page_bytes, std::uint64_t wanted, bool only_there) {
    Status status = At(bytes, page_bytes, wanted);
    if (only_there && (status != kSuccess || base_ != wanted)) {
      Free();
      return kInUse;
    }
    // What a driver does that cannot reserve the addresses is not documented.
    if (status != kSuccess && wanted != 0) status = At(bytes, page_bytes, 0);
    if (status != kSuccess) return status;
    return base_ > kMaxSafeInteger || bytes > kMaxSafeInteger - base_ ? kAddressTooLarge : Status{kSuccess};
  }
  std::uint64_t base() const { return base_; }
  void Release() { base_ = 0; }

 private:
  Status At(std::uint64_t bytes, std::uint64_t page_bytes, std::uint64_t wanted) {
    bytes_ = bytes;
    DevicePointer base = 0;
    const Status status = environment_.Counted<Call::kMemAddressReserve>(&base, static_cast<std::size_t>(bytes),
                                                                         static_cast<std::size_t>(page_bytes), DevicePointer{wanted}, 0ULL);
    if (status == kSuccess) base_ = base;
    return status;
  }
  void Free() {
    if (base_ != 0) environment_.Counted<Call::kMemAddressFree>(DevicePointer{base_}, static_cast<std::size_t>(bytes_));
    base_ = 0;
  }

  Environment& environment_;
  std::uint64_t base_ = 0;
  std::uint64_t bytes_ = 0;
};

// A handle of memory, which is released with this object: a mapping keeps the memory, and so does a descriptor.
class LastingHandle {
 public:
  LastingHandle(Environment& environment, int device) : environment_(environment), device_(device) {}
  ~LastingHandle() {
    if (memory_ == 0 || environment_.Counted<Call::kMemRelease>(MemoryHandle{memory_}) == kSuccess) return;
    Guarded([&] {
      LeaveOrphans(environment_, {{OrphanKind::kMemoryHandle, device_, memory_}});
      return Status{kSuccess};
    });
  }
  LastingHandle(const LastingHandle&) = delete;
  LastingHandle& operator=(const LastingHandle&) = delete;

  Status Open(const LastingRequest& request, std::uint64_t bytes, const AllocationProperties& properties) {
    return environment_.WithReclaim([&] {
      if (request.descriptor < 0) {
        return environment_.Counted<Call::kMemCreate>(&memory_, static_cast<std::size_t>(bytes), &properties, 0ULL);
      }
      void* handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(request.descriptor));
      return environment_.Counted<Call::kMemImportFromShareableHandle>(&memory_, handle, int{kHandleTypePosixDescriptor});
    });
  }
  Status Export(MemoryFile* file) {
    int descriptor = -1;
    const Status status = environment_.Counted<Call::kMemExportToShareableHandle>(static_cast<void*>(&descriptor), memory_,
                                                                                  int{kHandleTypePosixDescriptor}, 0ULL);
    if (status == kSuccess) *file = MemoryFile(descriptor);
    return status;
  }
  MemoryHandle memory() const { return memory_; }

 private:
  Environment& environment_;
  int device_;
  MemoryHandle memory_ = 0;
};

// Memory that others may write is only read here.
Status GiveLastingAccess(Environment& environment, const AddressSpace& space) {
  const std::vector<AccessDescription> access = AccessTo(environment, space.device, space.is_read_only ? kAccessRead : kAccessReadWrite);
  return environment.Counted<Call::kMemSetAccess>(DevicePointer{space.base}, static_cast<std::size_t>(space.bytes), access.data(),
                                                  access.size());
}

Status MapInto(Environment& environment, const std::shared_ptr<AddressSpace>& space, MemoryHandle memory) {
  std::uint64_t address;
  if (!space->Allocate(space->bytes, &address)) return kOutOfAddresses;
  space->AddPiece(space->base, space->base + space->bytes);
  Status status =
      environment.Counted<Call::kMemMap>(DevicePointer{space->base}, static_cast<std::size_t>(space->bytes), std::size_t{0}, memory, 0ULL);
  if (status != kSuccess) {
    space->RemovePiece(space->base);
    return status;
  }
  status = GiveLastingAccess(environment, *space);
  if (status == kSuccess) return status;
  // Nothing has used the memory. If the driver refuses even this, the addresses go to the orphans with it.
  if (environment.Counted<Call::kMemUnmap>(DevicePointer{space->base}, static_cast<std::size_t>(space->bytes)) == kSuccess) {
    space->RemovePiece(space->base);
  }
  return status;
}

}  // namespace

Status MapLasting(Environment& environment, const Napi::CallbackInfo& info) {
  LastingRequest request;
  Status status = ReadRequest(environment, info, &request);
  if (status != kSuccess) return status;
  status = BeforeAllocating(environment);
  if (status != kSuccess) return status;
  environment.ReapOrphans();
  const RelaxedContextScope context(environment, request.device);
  if (context.status() != kSuccess) return context.status();
  status = CheckSupport(environment, request.device);
  if (status != kSuccess) return status;
  AllocationProperties properties = PropertiesOf(environment, request.device);
  properties.handle_types = kHandleTypePosixDescriptor;
  std::size_t page_bytes = 0;
  status = environment.Counted<Call::kMemGetAllocationGranularity>(&page_bytes, &properties, int{kGranularityRecommended});
  if (status != kSuccess) return status;
  if (page_bytes == 0) return kErrorUnknown;
  const std::uint64_t bytes = (request.bytes + page_bytes - 1) / page_bytes * page_bytes;

  Reserved addresses(environment);
  status = addresses.Reserve(bytes, page_bytes, request.address, request.only_there);
  if (status != kSuccess) return status;
  LastingHandle memory(environment, request.device);
  status = memory.Open(request, bytes, properties);
  if (status != kSuccess) return status;
  MemoryFile file;
  if (request.descriptor < 0) status = memory.Export(&file);
  if (status != kSuccess) return status;

  const auto space = std::make_shared<AddressSpace>(request.device, addresses.base(), bytes, page_bytes);
  space->is_read_only = request.descriptor >= 0;
  status = MapInto(environment, space, memory.memory());
  std::uint64_t handle = 0;
  std::uint64_t exported = 0;
  if (status == kSuccess) {
    handle = environment.address_spaces.Add(space);
    if (file.IsOpen()) exported = environment.descriptors.Add(std::make_shared<MemoryFile>(std::move(file)));
    if (handle == 0) status = kHostOutOfMemory;
  }
  if (status != kSuccess) {
    if (space->HasMapped()) {
      addresses.Release();
      LeaveOrphans(environment, {{OrphanKind::kAddressSpace, space->device, space->base, space->bytes, space}});
    }
    return status;
  }
  environment.Out(1, static_cast<double>(handle));
  environment.Out(2, static_cast<double>(addresses.base()));
  environment.Out(3, static_cast<double>(bytes));
  environment.Out(4, static_cast<double>(exported));
  addresses.Release();
  return kSuccess;
}

Status ProtectLasting(Environment& environment, const Napi::CallbackInfo& info) {
  double number;
  if (!ReadNumber(info[0], &number)) return kInvalidArgument;
  std::shared_ptr<AddressSpace>* found;
  Status status = environment.address_spaces.Find(number, &found);
  if (status != kSuccess) return status;
  const std::shared_ptr<AddressSpace> space = *found;
  const RelaxedContextScope context(environment, space->device);
  if (context.status() != kSuccess) return context.status();
  const bool before = space->is_read_only;
  space->is_read_only = true;
  status = GiveLastingAccess(environment, *space);
  if (status != kSuccess) space->is_read_only = before;
  return status;
}

}  // namespace cistern
