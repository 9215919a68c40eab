#include "run.h"

#include <cstdio>
#include <cstring>

#include "fixture.h"

namespace cistern::test {

int RunCases(const char* only) {
  CHECK_OK(driver.Init(0));
  int case_count = 0;
  int failed_count = 0;
  for (Case* each = first_case; each != nullptr; each = each->next) {
    if (std::strstr(each->name, only) == nullptr) continue;
    ++case_count;
    const int before = failure_count;
    {
      OnDevice device(0);
      each->run();
      // Some cases end while work is still running; the next one counts bytes.
      CHECK_OK(driver.CtxSynchronize());
    }
    const bool has_failed = failure_count != before;
    failed_count += has_failed;
    std::printf("%s %s\n", has_failed ? "FAIL" : "  ok", each->name);
    std::fflush(stdout);
  }
  std::printf("%d of %d cases failed\n", failed_count, case_count);
  return failed_count == 0 && case_count > 0 ? 0 : 1;
}

}  // namespace cistern::test
