// Refuses host memory to this thread, as a host that has none left does: what operator new is asked for.
#ifndef CISTERN_TEST_HOST_MEMORY_H_
#define CISTERN_TEST_HOST_MEMORY_H_

namespace cistern::test {

// Which requests are refused, of those in all scopes of this thread since the last call of RefuseHostMemory.
enum class Refused { kOne, kAllAfter };

// The nth request from now on is refused, and with kAllAfter each one after it.
void RefuseHostMemory(int nth, Refused refused);
// Whether one was.
bool HasRefusedHostMemory();
void AllowHostMemory();

// Requests are counted, and refused, during a scope only, and not in one within it for what a test itself asks for.
class HostMemoryScope {
 public:
  explicit HostMemoryScope(bool counts = true);
  ~HostMemoryScope();
  HostMemoryScope(const HostMemoryScope&) = delete;

 private:
  const bool was_counting_;
};

}  // namespace cistern::test

#endif  // CISTERN_TEST_HOST_MEMORY_H_
