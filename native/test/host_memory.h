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

// Requests are counted, and refused, during a scope only.
class HostMemoryScope {
 public:
  HostMemoryScope();
  ~HostMemoryScope();
  HostMemoryScope(const HostMemoryScope&) = delete;
};

}  // namespace cistern::test

#endif  // CISTERN_TEST_HOST_MEMORY_H_
