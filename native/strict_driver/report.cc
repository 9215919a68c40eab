#include "strict_driver/report.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

#include "strict_driver/settings.h"

namespace cistern::strict {

void Report(const char* kind, const char* format, ...) {
  const std::string& path = settings().log;
  static const int file = path.empty() ? STDERR_FILENO : open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  char line[1024];
  constexpr int kLongest = sizeof line - 1;
  int length = std::snprintf(line, sizeof line, "[strict driver %d/%ld] %s ", getpid(), syscall(SYS_gettid), kind);
  va_list arguments;
  va_start(arguments, format);
  length += std::vsnprintf(line + length, static_cast<std::size_t>(kLongest - length), format, arguments);
  va_end(arguments);
  if (length > kLongest - 1) length = kLongest - 1;
  line[length++] = '\n';
  [[maybe_unused]] const ssize_t written = write(file, line, static_cast<std::size_t>(length));
}

}  // namespace cistern::strict
