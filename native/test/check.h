// A minimal test harness: named cases, and a CHECK that reports a failure and continues.
#ifndef CISTERN_TEST_CHECK_H_
#define CISTERN_TEST_CHECK_H_

#include <cstdio>

namespace cistern::test {

struct Case {
  const char* name;
  void (*run)();
  Case* next;
};

inline Case* first_case = nullptr;
inline int failure_count = 0;

struct Registration {
  Registration(Case* added) {
    Case** last = &first_case;
    while (*last != nullptr) last = &(*last)->next;
    *last = added;
  }
};

inline void Fail(const char* file, int line, const char* text) {
  std::printf("    %s:%d: not so: %s\n", file, line, text);
  __atomic_fetch_add(&failure_count, 1, __ATOMIC_RELAXED);
}

}  // namespace cistern::test

#define CISTERN_JOIN(a, b) a##b
#define CISTERN_NAME(a, line) CISTERN_JOIN(a, line)
#define TEST(sentence)                                                                                               \
  static void CISTERN_NAME(RunCase, __LINE__)();                                                                     \
  static ::cistern::test::Case CISTERN_NAME(case_, __LINE__) = {sentence, CISTERN_NAME(RunCase, __LINE__), nullptr}; \
  static ::cistern::test::Registration CISTERN_NAME(registration_, __LINE__)(&CISTERN_NAME(case_, __LINE__));        \
  static void CISTERN_NAME(RunCase, __LINE__)()

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) ::cistern::test::Fail(__FILE__, __LINE__, #condition); \
  } while (false)
#define CHECK_OK(call) CHECK((call) == ::cistern::kSuccess)

#endif  // CISTERN_TEST_CHECK_H_
