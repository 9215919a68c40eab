// Stands in for RMM's header in the tests of cistern.hpp.
#ifndef CISTERN_TEST_RMM_ERROR_HPP_
#define CISTERN_TEST_RMM_ERROR_HPP_

#include <new>
#include <string>

namespace rmm {

class out_of_memory : public std::bad_alloc {
 public:
  explicit out_of_memory(const std::string& text) : text_(text) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

}  // namespace rmm

#endif  // CISTERN_TEST_RMM_ERROR_HPP_
