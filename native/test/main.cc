// Runs every case, or with `--only TEXT` those whose name contains TEXT. The exit status is 0 only
// if no check failed.
#include <cstdio>
#include <cstring>

#include "fixture.h"
#include "process_test.h"

int main(int argc, char** argv) {
  using namespace cistern;
  const char* only = argc == 3 && std::strcmp(argv[1], "--only") == 0 ? argv[2] : "";
  if (argc == 3 && *only == '\0') return test::PlayScene(argv[1], argv[2]);
  if (argc == 2) return test::PlayScene(argv[1]);
  CHECK_OK(software::Configure(test::kTotal, 2));
  CHECK_OK(test::driver.Init(0));
  int case_count = 0;
  int failed_count = 0;
  for (test::Case* each = test::first_case; each != nullptr; each = each->next) {
    if (std::strstr(each->name, only) == nullptr) continue;
    ++case_count;
    int before = test::failure_count;
    {
      test::OnDevice device(0);
      each->run();
      // Some cases end while work is still running; the next one counts bytes.
      CHECK_OK(test::driver.CtxSynchronize());
    }
    bool has_failed = test::failure_count != before;
    failed_count += has_failed;
    std::printf("%s %s\n", has_failed ? "FAIL" : "  ok", each->name);
    std::fflush(stdout);
  }
  std::printf("%d of %d cases failed\n", failed_count, case_count);
  return failed_count == 0 && case_count > 0 ? 0 : 1;
}
