#ifndef CISTERN_PLATFORM_LASTING_H_
#define CISTERN_PLATFORM_LASTING_H_

#include <new>

namespace cistern {

// A static object that is never destroyed, since other threads may use it while the process ends. It asks for no memory,
// so that its first use, which may be the end of an environment, cannot fail.
template <typename Value>
class Lasting {
 public:
  Lasting() { new (bytes_) Value; }
  Value& operator*() { return *std::launder(reinterpret_cast<Value*>(bytes_)); }

 private:
  alignas(Value) unsigned char bytes_[sizeof(Value)];
};

}  // namespace cistern

#endif  // CISTERN_PLATFORM_LASTING_H_
