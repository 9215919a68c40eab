// Cases that need a process of their own: what comes before the first use, and the end of a process.
// The program runs itself with the name of a scene.
#include "process_test.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fixture.h"
#include "software/software_device.h"

namespace cistern::test {
namespace {

// The exit status of a scene, or -1 if it did not end within ten seconds.
int Play(const std::string& scene) {
  std::string program = "/proc/self/exe";
  std::string argument = scene;
  char* arguments[] = {program.data(), argument.data(), nullptr};
  pid_t child = 0;
  if (posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ) != 0) return -2;
  for (int waited = 0; waited < 10000; waited += 10) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    SleepMilliseconds(10);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return -1;
}

void StallForever(void*) {
  for (;;) pause();
}

int ExitStalled() {
  if (driver.Init(0) != kSuccess) return 1;
  Context context;
  driver.DevicePrimaryCtxRetain(&context, 0);
  driver.CtxSetCurrent(context);
  Stream stream;
  driver.StreamCreateWithPriority(&stream, 0, 0);
  driver.LaunchHostFunc(stream, StallForever, nullptr);
  driver.LaunchHostFunc(PerThreadStream(), StallForever, nullptr);
  driver.LaunchHostFunc(nullptr, StallForever, nullptr);
  driver.StreamDestroy(stream);
  std::exit(7);
}

// Zero: not set.
int ReportSettings(int mebibytes, int devices) {
  if (software::Configure(static_cast<std::uint64_t>(mebibytes) << 20, devices) != kSuccess) return 100;
  if (driver.Init(0) != kSuccess) return 101;
  int count = 0;
  std::size_t bytes = 0;
  driver.DeviceGetCount(&count);
  driver.DeviceTotalMem(&bytes, count - 1);
  return bytes >= kMiB ? count * 10 + static_cast<int>(bytes >> 20) % 10 : 102;
}

int UseBeforeInit() {
  int count = 0;
  Context context = nullptr;
  Stream stream = nullptr;
  bool is_refused = driver.DeviceGetCount(&count) == kErrorNotInitialized && driver.CtxGetCurrent(&context) == kErrorNotInitialized &&
                    driver.DevicePrimaryCtxRetain(&context, 0) == kErrorNotInitialized &&
                    driver.StreamCreateWithPriority(&stream, 0, 0) == kErrorInvalidContext &&
                    driver.EventQuery(reinterpret_cast<Event>(std::uintptr_t{1} << 30)) == kErrorInvalidHandle;
  return is_refused ? 0 : 1;
}

}  // namespace

int PlayScene(const char* scene) {
  if (std::strcmp(scene, "exit-stalled") == 0) return ExitStalled();
  int mebibytes;
  int devices;
  if (std::sscanf(scene, "report-settings %d %d", &mebibytes, &devices) == 2) return ReportSettings(mebibytes, devices);
  if (std::strcmp(scene, "use-before-init") == 0) return UseBeforeInit();
  return 99;
}

TEST("a process ends while its streams are stalled") { CHECK(Play("exit-stalled") == 7); }

TEST("only the version can be queried before the driver is initialized") { CHECK(Play("use-before-init") == 0); }

TEST("the memory and the number of devices are set before the first use") {
  CHECK(Play("report-settings 3 4") == 43);
  CHECK(Play("report-settings 5 0") == 15);
  CHECK(Play("report-settings 2048 8") == 88);
  CHECK(Play("report-settings 0 0") >= 10);
  CHECK(Play("report-settings 0 9") == 100);
  CHECK(Play("report-settings 5242880 1") == 100);
}

}  // namespace cistern::test
