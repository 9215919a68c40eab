#include "addon/dlpack.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "addon/bindings.h"
#include "addon/hand_overs.h"
#include "addon/host_functions.h"
#include "addon/host_memory.h"
#include "cistern.h"
#include "platform/lasting.h"

namespace cistern {

// A tensor in memory of this process that another library uses, from the making of its capsule to
// the call of its deleter.
//
//     capsule ── consumed ──► deleter, on any thread ──► the loop's list ──► JavaScript frees the memory
//        └───── collected ──────▲
//
// While it lives, orphans do not free its memory: its environment may end before it.
struct ExportedTensor {
  ExportedTensor(const Environment& environment, std::uint64_t address, std::uint64_t bytes);
  ~ExportedTensor();
  ExportedTensor(const ExportedTensor&) = delete;
  ExportedTensor& operator=(const ExportedTensor&) = delete;

  ExportedTensor* next = nullptr;
  const std::shared_ptr<EventLoop> loop;
  const DriverTable* const backend;
  const AddressRange range;
  std::vector<std::int64_t> numbers;  // the shape, then the strides
  dlpack::ManagedTensor unversioned = {};
  dlpack::ManagedTensorVersioned versioned = {};
  Napi::FunctionReference released;  // empty once the environment has ended: any thread may delete this object
};

namespace {

constexpr std::int32_t kMostDimensions = 64;
constexpr std::uint64_t kMostBits = 255;
constexpr std::uint64_t kMostLanes = 65535;

struct ExportedTensors {
  std::mutex mutex;
  std::set<ExportedTensor*> live;
};

// Never destroyed: threads may still use it while the process ends.
ExportedTensors& Exported() {
  static Lasting<ExportedTensors> exported;
  return *exported;
}

// The consumer is done, on whichever thread it is.
void Release(ExportedTensor* tensor) {
  const std::shared_ptr<EventLoop> loop = tensor->loop;
  {
    const std::lock_guard<std::mutex> lock(loop->mutex);
    if (!loop->has_closed_tensors) {
      loop->released_tensors.Append(tensor);
      loop->PostWake();
      return;
    }
  }
  delete tensor;
}

template <typename Managed>
void Delete(Managed* managed) {
  if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
}

void DeleteTensor(void* managed, bool is_versioned) {
  if (is_versioned) {
    Delete(static_cast<dlpack::ManagedTensorVersioned*>(managed));
  } else {
    Delete(static_cast<dlpack::ManagedTensor*>(managed));
  }
}

// A capsule's external ends.
template <bool is_versioned>
void EndCapsule(napi_env, void* data, void*) {
  void** slot = static_cast<void**>(data);
  DeleteTensor(std::exchange(*slot, nullptr), is_versioned);
  delete slot;
}

bool IsTagged(napi_env env, napi_value value, const napi_type_tag& tag) {
  bool is_tagged = false;
  return napi_check_object_type_tag(env, value, &tag, &is_tagged) == napi_ok && is_tagged;
}

// kInvalidArgument for anything but a capsule, kStaleHandle for one that was consumed.
Status ReadCapsule(const Napi::Value& value, void*** slot, bool* is_versioned) {
  if (!value.IsExternal()) return kInvalidArgument;
  const Napi::Env env = value.Env();
  *is_versioned = IsTagged(env, value, cistern_dlpack_versioned_tag);
  if (!*is_versioned && !IsTagged(env, value, cistern_dlpack_unversioned_tag)) return kInvalidArgument;
  void* data = nullptr;
  if (napi_get_value_external(env, value, &data) != napi_ok || data == nullptr) return kInvalidArgument;
  *slot = static_cast<void**>(data);
  return **slot != nullptr ? kSuccess : kStaleHandle;
}

// A number for JavaScript; NaN if it is not exact there.
double Exact(std::int64_t number) {
  constexpr auto kMost = static_cast<std::int64_t>(kMaxSafeInteger);
  return number >= -kMost && number <= kMost ? static_cast<double>(number) : std::nan("");
}
double Exact(std::uint64_t number) { return number <= kMaxSafeInteger ? static_cast<double>(number) : std::nan(""); }

bool ReadNumbers(const Napi::Value& value, std::vector<std::int64_t>* numbers) {
  Napi::Float64Array array;
  if (!ReadArray(value, &array)) return false;
  const std::size_t length = array.ElementLength();
  for (std::size_t i = 0; i < length; ++i) {
    std::uint64_t number;
    if (!ToInteger(array[i], &number)) return false;
    numbers->push_back(static_cast<std::int64_t>(number));
  }
  return true;
}

bool ReadLimited(const Napi::Value& value, std::uint64_t most, std::uint64_t* number) {
  return ReadInteger(value, number) && *number <= most;
}

const dlpack::Tensor& TensorOf(const void* managed, bool is_versioned) {
  return is_versioned ? static_cast<const dlpack::ManagedTensorVersioned*>(managed)->tensor
                      : static_cast<const dlpack::ManagedTensor*>(managed)->tensor;
}

// The bytes of a tensor from its first element to the end of its last one; false if they cannot be
// counted.
bool ReadExtent(const dlpack::Tensor& tensor, std::uint64_t* bytes) {
  const std::uint64_t bits = std::uint64_t{tensor.type.bits} * tensor.type.lanes;
  if (bits == 0 || bits % 8 != 0 || tensor.dimensions < 0 || tensor.dimensions > kMostDimensions) return false;
  if (tensor.dimensions > 0 && tensor.shape == nullptr) return false;
  const auto item = static_cast<std::int64_t>(bits / 8);
  std::int64_t extent = item;
  std::int64_t compact = item;
  bool is_empty = false;
  for (std::int32_t i = tensor.dimensions - 1; i >= 0; --i) {
    const std::int64_t length = tensor.shape[i];
    if (length < 0) return false;
    if (length == 0) is_empty = true;
    std::int64_t stride = compact;
    std::int64_t reach;
    if (tensor.strides != nullptr && __builtin_mul_overflow(tensor.strides[i], item, &stride)) return false;
    if (stride < 0 || __builtin_mul_overflow(stride, std::max<std::int64_t>(length, 1) - 1, &reach)) return false;
    if (__builtin_add_overflow(extent, reach, &extent)) return false;
    if (__builtin_mul_overflow(compact, std::max<std::int64_t>(length, 1), &compact)) return false;
  }
  *bytes = is_empty ? 0 : static_cast<std::uint64_t>(extent);
  return *bytes <= kMaxSafeInteger;
}

// The capsule of a tensor, which it owns from then on; empty if Node-API refuses.
Napi::Value NewCapsule(Napi::Env env, void* managed, bool is_versioned) {
  auto slot = std::make_unique<void*>(nullptr);
  napi_value external;
  const napi_finalize end = is_versioned ? EndCapsule<true> : EndCapsule<false>;
  if (napi_create_external(env, slot.get(), end, nullptr, &external) != napi_ok) return Napi::Value();
  void** kept = slot.release();
  const napi_type_tag& tag = is_versioned ? cistern_dlpack_versioned_tag : cistern_dlpack_unversioned_tag;
  if (napi_type_tag_object(env, external, &tag) != napi_ok) return Napi::Value();
  *kept = managed;
  return Napi::Value(env, external);
}

}  // namespace

ImportedTensor::~ImportedTensor() {
  if (lent_bytes_ != 0) TakeBackHostMemory(lent_address_, lent_bytes_);
  DeleteTensor(managed_, is_versioned_);
}

void ImportedTensor::LendHostMemory(std::uint64_t address, std::uint64_t bytes) {
  cistern::LendHostMemory(address, bytes);
  lent_address_ = address;
  lent_bytes_ = bytes;
}

void DeliverReleasedTensors(Environment& environment) {
  const Napi::Env env = environment.env;
  EventLoop& loop = *environment.loop;
  for (;;) {
    const Napi::HandleScope scope(env);
    if (!MayRunJavaScript(env)) return;
    std::unique_ptr<ExportedTensor> tensor;
    {
      const std::lock_guard<std::mutex> lock(loop.mutex);
      tensor.reset(loop.released_tensors.TakeFirst());
    }
    if (tensor == nullptr) return;
    environment.exported_tensors.erase(tensor.get());
    environment.CallBack(tensor->released);
  }
}

ExportedTensor::ExportedTensor(const Environment& environment, std::uint64_t address, std::uint64_t bytes)
    : loop(environment.loop), backend(environment.backend), range{address, address + bytes} {
  ExportedTensors& exported = Exported();
  const std::lock_guard<std::mutex> lock(exported.mutex);
  exported.live.insert(this);
}

ExportedTensor::~ExportedTensor() {
  ExportedTensors& exported = Exported();
  const std::lock_guard<std::mutex> lock(exported.mutex);
  exported.live.erase(this);
}

void AppendExportedMemory(const DriverTable* backend, std::vector<AddressRange>* ranges) {
  ExportedTensors& exported = Exported();
  const std::lock_guard<std::mutex> lock(exported.mutex);
  for (const ExportedTensor* tensor : exported.live) {
    if (tensor->backend == backend && tensor->range.begin < tensor->range.end) ranges->push_back(tensor->range);
  }
}

void CloseExportedTensors(Environment& environment) {
  EventLoop& loop = *environment.loop;
  IntrusiveList<ExportedTensor> released;
  {
    const std::lock_guard<std::mutex> lock(loop.mutex);
    loop.has_closed_tensors = true;
    released = loop.released_tensors.TakeAll();
    // Their deleters delete the others.
    for (ExportedTensor* tensor : environment.exported_tensors) tensor->released.Reset();
    environment.exported_tensors.clear();
  }
  while (ExportedTensor* tensor = released.TakeFirst()) delete tensor;
}

Status ExportTensor(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  std::uint64_t address, byte_offset, code, bits, lanes, flags;
  int device_type, device_id;
  bool is_versioned;
  std::vector<std::int64_t> numbers;
  if (!ReadInteger(info[0], &address) || !ReadInt(info[1], &device_type) || !ReadInt(info[2], &device_id)) return kInvalidArgument;
  if (!ReadLimited(info[3], kMostBits, &code) || !ReadLimited(info[4], kMostBits, &bits) || !ReadLimited(info[5], kMostLanes, &lanes)) {
    return kInvalidArgument;
  }
  if (!ReadInteger(info[6], &byte_offset) || !ReadInteger(info[7], &flags) || !ReadBoolean(info[8], &is_versioned)) return kInvalidArgument;
  if (!ReadNumbers(info[9], &numbers) || numbers.size() > kMostDimensions) return kInvalidArgument;
  const std::size_t dimensions = numbers.size();
  if (!ReadNumbers(info[10], &numbers) || numbers.size() != 2 * dimensions || !info[11].IsFunction()) return kInvalidArgument;
  if (environment.backend == nullptr) return kNoBackend;
  DeliverReleasedTensors(environment);

  dlpack::Tensor description = {};
  description.data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  description.device = {device_type, device_id};
  description.dimensions = static_cast<std::int32_t>(dimensions);
  description.type = {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), static_cast<std::uint16_t>(lanes)};
  description.shape = numbers.data();
  description.strides = numbers.data() + dimensions;
  description.byte_offset = byte_offset;
  std::uint64_t bytes;
  if (!ReadExtent(description, &bytes) || bytes > kMaxSafeInteger - address || byte_offset > kMaxSafeInteger - address - bytes) {
    return kInvalidArgument;
  }
  auto tensor = std::make_unique<ExportedTensor>(environment, address, bytes == 0 ? 0 : byte_offset + bytes);
  // The numbers stay where they are.
  tensor->numbers = std::move(numbers);
  tensor->released = Napi::Persistent(info[11].As<Napi::Function>());
  void* managed;
  if (is_versioned) {
    tensor->versioned = {{dlpack::kMajorVersion, dlpack::kMinorVersion},
                         tensor.get(),
                         [](dlpack::ManagedTensorVersioned* self) { Release(static_cast<ExportedTensor*>(self->manager)); },
                         flags,
                         description};
    managed = &tensor->versioned;
  } else {
    tensor->unversioned = {description, tensor.get(),
                           [](dlpack::ManagedTensor* self) { Release(static_cast<ExportedTensor*>(self->manager)); }};
    managed = &tensor->unversioned;
  }
  environment.exported_tensors.insert(tensor.get());
  const Napi::Value capsule = NewCapsule(info.Env(), managed, is_versioned);
  if (capsule.IsEmpty()) {
    environment.exported_tensors.erase(tensor.get());
    return kErrorNotSupported;
  }
  tensor.release();
  *result = capsule;
  return kSuccess;
}

Status InspectTensor(Environment& environment, const Napi::CallbackInfo& info) {
  void** slot;
  bool is_versioned;
  Napi::Float64Array numbers;
  if (!ReadArray(info[1], &numbers) || numbers.ElementLength() < 2 * kMostDimensions) return kInvalidArgument;
  const Status status = ReadCapsule(info[0], &slot, &is_versioned);
  if (status != kSuccess) return status;
  for (int cell = 1; cell <= 12; ++cell) environment.Out(cell, 0);
  environment.Out(1, is_versioned ? 1 : 0);
  if (is_versioned) {
    const auto* managed = static_cast<const dlpack::ManagedTensorVersioned*>(*slot);
    environment.Out(11, managed->version.major);
    environment.Out(12, managed->version.minor);
    // Nothing else may be read of another major version.
    if (managed->version.major != dlpack::kMajorVersion) return kSuccess;
    environment.Out(10, Exact(managed->flags));
  }
  const dlpack::Tensor* tensor = &TensorOf(*slot, is_versioned);
  environment.Out(2, Exact(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(tensor->data))));
  environment.Out(3, tensor->device.type);
  environment.Out(4, tensor->device.id);
  environment.Out(5, tensor->shape == nullptr && tensor->dimensions > 0 ? -1 : tensor->dimensions);
  environment.Out(6, tensor->type.code);
  environment.Out(7, tensor->type.bits);
  environment.Out(8, tensor->type.lanes);
  environment.Out(9, Exact(tensor->byte_offset));
  environment.Out(13, tensor->strides != nullptr ? 1 : 0);
  for (std::int32_t i = 0; tensor->shape != nullptr && i < std::min(tensor->dimensions, kMostDimensions); ++i) {
    const auto at = static_cast<std::size_t>(i);
    numbers[at] = Exact(tensor->shape[i]);
    if (tensor->strides != nullptr) numbers[kMostDimensions + at] = Exact(tensor->strides[i]);
  }
  return kSuccess;
}

Status TakeTensor(Environment& environment, const Napi::CallbackInfo& info) {
  void** slot;
  bool is_versioned;
  const Status status = ReadCapsule(info[0], &slot, &is_versioned);
  if (status != kSuccess) return status;
  if (is_versioned && static_cast<const dlpack::ManagedTensorVersioned*>(*slot)->version.major != dlpack::kMajorVersion) {
    return kInvalidArgument;
  }
  const dlpack::Tensor& description = TensorOf(*slot, is_versioned);
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  if (description.device.type == dlpack::kCpu) {
    address = reinterpret_cast<std::uintptr_t>(description.data) + description.byte_offset;
    if (!ReadExtent(description, &bytes) || address > kMaxSafeInteger - bytes) return kInvalidArgument;
  }
  auto tensor = std::make_shared<ImportedTensor>(is_versioned);
  const std::uint64_t handle = environment.imported_tensors.Add(tensor);
  if (handle == 0) return kHostOutOfMemory;
  try {
    if (bytes != 0) tensor->LendHostMemory(address, bytes);
  } catch (const std::bad_alloc&) {
    environment.imported_tensors.Remove(handle);
    return kHostOutOfMemory;
  }
  tensor->Own(std::exchange(*slot, nullptr));
  environment.Out(1, static_cast<double>(handle));
  return kSuccess;
}

Status ReleaseTensor(Environment& environment, const Napi::CallbackInfo& info) {
  double handle;
  if (!ReadNumber(info[0], &handle)) return kInvalidArgument;
  std::shared_ptr<ImportedTensor>* found;
  const Status status = environment.imported_tensors.Find(handle, &found);
  if (status != kSuccess) return status;
  // The deleter is foreign code: it runs last.
  const std::shared_ptr<ImportedTensor> tensor = *found;
  environment.imported_tensors.Remove(static_cast<std::uint64_t>(handle));
  return kSuccess;
}

}  // namespace cistern
