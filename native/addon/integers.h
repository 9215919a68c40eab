// JavaScript numbers as integers.
#ifndef CISTERN_ADDON_INTEGERS_H_
#define CISTERN_ADDON_INTEGERS_H_

#include <cstdint>
#include <limits>

namespace cistern {

inline constexpr std::uint64_t kMaxSafeInteger = (std::uint64_t{1} << 53) - 1;

// True for 0, 1, … 2^53 - 1. The comparisons come first: converting a NaN or a number out of range
// is undefined behaviour.
inline bool ToInteger(double number, std::uint64_t* integer) {
  if (!(number >= 0 && number <= static_cast<double>(kMaxSafeInteger))) return false;
  // A signed conversion is one instruction, an unsigned one several.
  const auto whole = static_cast<std::int64_t>(number);
  *integer = static_cast<std::uint64_t>(whole);
  return static_cast<double>(whole) == number;
}

inline bool ToSignedInteger(double number, std::int64_t* integer) {
  std::uint64_t magnitude;
  if (!ToInteger(number < 0 ? -number : number, &magnitude)) return false;
  *integer = number < 0 ? -static_cast<std::int64_t>(magnitude) : static_cast<std::int64_t>(magnitude);
  return true;
}

inline bool ToInt(double number, int* integer) {
  std::int64_t wide;
  if (!ToSignedInteger(number, &wide)) return false;
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) return false;
  *integer = static_cast<int>(wide);
  return true;
}

// Like ToInteger, but Infinity stands for 2^64 - 1, which the driver reads as "no limit".
inline bool ToLimit(double number, std::uint64_t* limit) {
  if (number == std::numeric_limits<double>::infinity()) {
    *limit = std::numeric_limits<std::uint64_t>::max();
    return true;
  }
  return ToInteger(number, limit);
}

inline double FromLimit(std::uint64_t limit) {
  if (limit == std::numeric_limits<std::uint64_t>::max()) return std::numeric_limits<double>::infinity();
  return static_cast<double>(limit);
}

}  // namespace cistern

#endif  // CISTERN_ADDON_INTEGERS_H_
