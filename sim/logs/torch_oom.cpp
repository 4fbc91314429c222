#include "sim/logs/torch_oom.hpp"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "sim/core/units_text.hpp"

namespace oomcast::logs {
namespace {

constexpr const char* kSize = R"((\d[\d,]*(?:\.\d+)? ?(?:bytes|[KMGT]i?B)))";

re2::StringPiece piece(std::string_view text) { return {text.data(), text.size()}; }
std::string_view view(const re2::StringPiece& text) { return {text.data(), text.size()}; }

// A pattern with `{size}` for a size.
re2::RE2 with_size(std::string pattern) {
  constexpr std::string_view kMark = "{size}";
  for (std::size_t at = pattern.find(kMark); at != std::string::npos; at = pattern.find(kMark)) {
    pattern.replace(at, kMark.size(), kSize);
  }
  return re2::RE2(pattern, re2::RE2::Latin1);
}

struct Part {
  re2::RE2 pattern;
  std::optional<Bytes> TorchOom::*into;
  std::string_view unit = {};  // of a number that is written without one
};

// The order matters where two wordings may stand in one text: the first that matches holds.
const std::array<Part, 17>& parts() {
  static const std::array<Part, 17> kParts = {{
      {with_size("[Tt]ried (?:to allocate )?{size}"), &TorchOom::tried},
      {with_size("total capac(?:i)?ty of {size}"), &TorchOom::total},
      {with_size("; {size} total capacity"), &TorchOom::total},
      {with_size("{size} of which"), &TorchOom::total},
      {with_size("of which {size} is free"), &TorchOom::free},
      {with_size("; {size} free"), &TorchOom::free},
      {with_size("{size} is free"), &TorchOom::free},
      {with_size("this process has {size} memory in use"), &TorchOom::process},
      {with_size("Process has {size} (?:memory )?in use"), &TorchOom::process},
      {with_size("{size} allowed"), &TorchOom::allowed},
      {with_size("{size} (?:is |already )?allocated(?: by PyTorch|;)"), &TorchOom::allocated},
      {with_size("{size} (?:allocated )?in private pools"), &TorchOom::private_pools},
      {with_size("{size} is reserved by PyTorch but unallocated"), &TorchOom::unallocated},
      {with_size("{size} reserved but unallocated"), &TorchOom::unallocated},
      {with_size(R"(\btotal (\d+\.\d+)[,;])"), &TorchOom::total, " GiB"},
      {with_size(R"(\bfree (\d+\.\d+)[,;])"), &TorchOom::free, " GiB"},
      {with_size(R"(\ballocated (\d+\.\d+)(?:[,;]|$))"), &TorchOom::allocated, " GiB"},
  }};
  return kParts;
}

// Until 2.0 the text gave what is reserved in total.
std::optional<Bytes> reserved_in_total(std::string_view line) {
  static const re2::RE2 kPattern = with_size("{size} reserved in total by PyTorch");
  re2::StringPiece size;
  return re2::RE2::PartialMatch(piece(line), kPattern, &size) ? parse_torch_size(view(size))
                                                              : std::nullopt;
}

std::optional<Bytes> named_processes(std::string_view line) {
  static const re2::RE2 kPattern = with_size(R"(Process \d+ has {size} memory in use)");
  re2::StringPiece rest = piece(line);
  re2::StringPiece size;
  std::optional<Bytes> sum;
  while (re2::RE2::FindAndConsume(&rest, kPattern, &size)) {
    if (const auto bytes = parse_torch_size(view(size))) {
      sum = sum.value_or(Bytes{0}) + *bytes;
    }
  }
  return sum;
}

}  // namespace

std::optional<Bytes> parse_torch_size(std::string_view text) {
  static const re2::RE2 kPattern(R"((\d[\d,]*(?:\.\d+)?) ?(bytes|[KMGT]i?B))", re2::RE2::Latin1);
  std::string number;
  std::string unit;
  if (!re2::RE2::FullMatch(piece(text), kPattern, &number, &unit)) {
    return std::nullopt;
  }
  number.erase(std::remove(number.begin(), number.end(), ','), number.end());
  const auto value = parse_number(number);
  const std::size_t power = unit == "bytes" ? 0 : std::string_view("KMGT").find(unit[0]) + 1;
  constexpr double kMost = 9007199254740992.0;
  const double bytes = value ? std::ldexp(*value, static_cast<int>(10 * power)) : kMost;
  if (bytes >= kMost) {
    return std::nullopt;
  }
  return Bytes{std::llround(bytes)};
}

std::optional<TorchOom> read_torch_oom(std::string_view line) {
  TorchOom oom;
  for (const Part& part : parts()) {
    re2::StringPiece size;
    if (!(oom.*part.into) && re2::RE2::PartialMatch(piece(line), part.pattern, &size)) {
      oom.*part.into = parse_torch_size(std::string(view(size)) + std::string(part.unit));
    }
  }
  if (!oom.tried) {
    return std::nullopt;
  }
  static const re2::RE2 kGpu(R"(\bGPU (\d{1,4})\b)", re2::RE2::Latin1);
  int gpu = 0;
  if (re2::RE2::PartialMatch(piece(line), kGpu, &gpu)) {
    oom.gpu = gpu;
  }
  if (!oom.unallocated && oom.allocated) {
    if (const auto reserved = reserved_in_total(line)) {
      oom.unallocated = std::max(Bytes{0}, *reserved - *oom.allocated);
    }
  }
  oom.others = named_processes(line);
  return oom;
}

std::optional<Bytes> TorchOom::short_by() const {
  return tried && free ? std::optional(std::max(Bytes{0}, *tried - *free)) : std::nullopt;
}

bool TorchOom::is_fragmented() const {
  return tried && free && unallocated && *tried <= *free + *unallocated;
}

std::optional<Bytes> TorchOom::outside_torch() const {
  if (!process || !allocated) {
    return std::nullopt;
  }
  return std::max(Bytes{0}, *process - *allocated - unallocated.value_or(Bytes{0}));
}

std::optional<Bytes> TorchOom::other_processes() const {
  if (others) {
    return others;
  }
  if (!total || !free || !process) {
    return std::nullopt;
  }
  // Three figures rounded to 0.01 GiB are no sign of another process.
  constexpr Bytes kRounding{std::int64_t{16} << 20};
  const Bytes rest = *total - *free - *process;
  return rest > kRounding ? rest : Bytes{0};
}

}  // namespace oomcast::logs
