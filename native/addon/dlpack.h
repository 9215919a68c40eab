// Tensors that other libraries use, and tensors of other libraries, in the form of DLPack.
//
// Written from the specification of DLPack 1.0 (dmlc.github.io/dlpack). Capsules are described in
// include/cistern.h.
#ifndef CISTERN_ADDON_DLPACK_H_
#define CISTERN_ADDON_DLPACK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cistern {

class Environment;
struct AddressRange;
struct DriverTable;

namespace dlpack {

// DLDeviceType
enum : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

inline constexpr std::uint32_t kMajorVersion = 1;
inline constexpr std::uint32_t kMinorVersion = 0;

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DataType type;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: C order without gaps
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor* self);  // may be null
};

struct ManagedTensorVersioned {
  Version version;
  void* manager;
  void (*deleter)(ManagedTensorVersioned* self);  // may be null
  std::uint64_t flags;
  Tensor tensor;
};

static_assert(sizeof(Version) == 8 && sizeof(Device) == 8 && sizeof(DataType) == 4, "DLPackVersion, DLDevice, DLDataType");
static_assert(sizeof(void*) != 8 || sizeof(Tensor) == 48, "DLTensor has 48 bytes");
static_assert(sizeof(void*) != 8 ||
                  (offsetof(Tensor, device) == 8 && offsetof(Tensor, dimensions) == 16 && offsetof(Tensor, type) == 20 &&
                   offsetof(Tensor, shape) == 24 && offsetof(Tensor, strides) == 32 && offsetof(Tensor, byte_offset) == 40),
              "the members of DLTensor");
static_assert(sizeof(void*) != 8 ||
                  (sizeof(ManagedTensor) == 64 && offsetof(ManagedTensor, manager) == 48 && offsetof(ManagedTensor, deleter) == 56),
              "the members of DLManagedTensor");
static_assert(sizeof(void*) != 8 || (sizeof(ManagedTensorVersioned) == 80 && offsetof(ManagedTensorVersioned, manager) == 8 &&
                                     offsetof(ManagedTensorVersioned, deleter) == 16 && offsetof(ManagedTensorVersioned, flags) == 24 &&
                                     offsetof(ManagedTensorVersioned, tensor) == 32),
              "the members of DLManagedTensorVersioned");

}  // namespace dlpack

// A tensor taken out of a capsule. Ends with a call of its deleter, on whichever thread.
class ImportedTensor {
 public:
  explicit ImportedTensor(bool is_versioned) : is_versioned_(is_versioned) {}
  ~ImportedTensor();
  ImportedTensor(const ImportedTensor&) = delete;
  ImportedTensor& operator=(const ImportedTensor&) = delete;

  void Own(void* managed) { managed_ = managed; }
  // Lets copies use ordinary host memory until the tensor ends. Throws std::bad_alloc.
  void LendHostMemory(std::uint64_t address, std::uint64_t bytes);

 private:
  void* managed_ = nullptr;
  bool is_versioned_;
  std::uint64_t lent_address_ = 0;
  std::uint64_t lent_bytes_ = 0;
};

// The memory of all exported tensors whose deleters have not been called.
void AppendExportedMemory(const DriverTable* backend, std::vector<AddressRange>* ranges);

// The environment ends: deleters no longer tell JavaScript. Called on the JavaScript thread.
void CloseExportedTensors(Environment& environment);

// Tells JavaScript of the tensors whose deleters were called. Called on the JavaScript thread.
void DeliverReleasedTensors(Environment& environment);

}  // namespace cistern

#endif  // CISTERN_ADDON_DLPACK_H_
