#include "sim/core/units_text.hpp"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace oomcast {
namespace {

constexpr double kTwoTo63 = 9223372036854775808.0;

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

char lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

std::string lower(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    out += lower(letter);
  }
  return out;
}

struct NumberAndSuffix {
  double number;
  std::string_view digits;
  std::string_view suffix;
};

std::optional<NumberAndSuffix> split_number(std::string_view text) {
  text = trim(text);
  const auto end = text.find_first_not_of("0123456789.");
  const std::string_view digits = text.substr(0, end);
  const std::string_view rest = end == std::string_view::npos ? "" : text.substr(end);
  const auto number = parse_number(digits);
  if (!number) {
    return std::nullopt;
  }
  return NumberAndSuffix{*number, digits, trim(rest)};
}

std::optional<std::int64_t> scaled(const NumberAndSuffix& parts, double factor) {
  // Whole numbers stay exact beyond 2^53; only fractions go through double.
  if (parts.digits.find('.') == std::string_view::npos) {
    std::int64_t whole = 0;
    const auto* last = parts.digits.data() + parts.digits.size();
    const auto [end, error] = std::from_chars(parts.digits.data(), last, whole);
    std::int64_t out = 0;
    if (error != std::errc{} || end != last ||
        __builtin_mul_overflow(whole, static_cast<std::int64_t>(factor), &out)) {
      return std::nullopt;
    }
    return out;
  }
  const double value = parts.number * factor;
  if (!(value >= 0) || value >= kTwoTo63) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(std::llround(value));
}

}  // namespace

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (text.empty() || error != std::errc{} || end != last || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<Bytes> parse_bytes(std::string_view text) {
  const auto parts = split_number(text);
  if (!parts) {
    return std::nullopt;
  }
  constexpr double kKibi = 1024.0;
  static constexpr std::array<std::pair<std::string_view, double>, 18> kSuffixes = {{
      {"", 1.0},
      {"b", 1.0},
      {"k", kKibi},
      {"m", kKibi * kKibi},
      {"g", kKibi * kKibi * kKibi},
      {"t", kKibi * kKibi * kKibi * kKibi},
      {"kib", kKibi},
      {"mib", kKibi * kKibi},
      {"gib", kKibi * kKibi * kKibi},
      {"tib", kKibi * kKibi * kKibi * kKibi},
      {"ki", kKibi},
      {"mi", kKibi * kKibi},
      {"gi", kKibi * kKibi * kKibi},
      {"ti", kKibi * kKibi * kKibi * kKibi},
      {"kb", 1e3},
      {"mb", 1e6},
      {"gb", 1e9},
      {"tb", 1e12},
  }};
  const std::string suffix = lower(parts->suffix);
  for (const auto& [name, factor] : kSuffixes) {
    if (suffix == name) {
      const auto count = scaled(*parts, factor);
      return count ? std::optional<Bytes>(Bytes{*count}) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> parse_count(std::string_view text) {
  const auto parts = split_number(text);
  if (!parts) {
    return std::nullopt;
  }
  double factor = 1;
  if (parts->suffix.size() == 1) {
    const char letter = parts->suffix[0];
    const bool binary = letter != lower(letter);
    const double base = binary ? 1024.0 : 1000.0;
    switch (lower(letter)) {
      case 'k':
        factor = base;
        break;
      case 'm':
        factor = base * base;
        break;
      case 'g':
        factor = base * base * base;
        break;
      default:
        return std::nullopt;
    }
  } else if (!parts->suffix.empty()) {
    return std::nullopt;
  }
  if (parts->number * factor != std::floor(parts->number * factor)) {
    return std::nullopt;
  }
  return scaled(*parts, factor);
}

std::string format_bytes(Bytes bytes) {
  const double size = std::abs(static_cast<double>(bytes.count()));
  const double value = static_cast<double>(bytes.count());
  if (size >= static_cast<double>(kGiB.count())) {
    return fmt::format("{:.2f} GiB", value / static_cast<double>(kGiB.count()));
  }
  if (size >= static_cast<double>(kMiB.count())) {
    return fmt::format("{:.1f} MiB", value / static_cast<double>(kMiB.count()));
  }
  if (size >= static_cast<double>(kKiB.count())) {
    return fmt::format("{:.1f} KiB", value / static_cast<double>(kKiB.count()));
  }
  return fmt::format("{} B", bytes.count());
}

std::string format_count(std::int64_t count) {
  std::string digits = fmt::format("{}", count);
  const std::size_t sign = count < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > sign + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string format_span(Nanos span) {
  const double seconds = static_cast<double>(span.count()) * 1e-9;
  if (seconds < 1e-3) {
    return fmt::format("{:.1f} us", seconds * 1e6);
  }
  if (seconds < 1) {
    return fmt::format("{:.1f} ms", seconds * 1e3);
  }
  if (seconds < 60) {
    return fmt::format("{:.1f} s", seconds);
  }
  const auto whole = static_cast<std::int64_t>(seconds);
  if (whole < 3600) {
    return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  }
  return fmt::format("{}h {:02}m {:02}s", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string format_seconds(Nanos span) {
  constexpr std::int64_t kPerSecond = 1'000'000'000;
  const std::int64_t count = span.count();
  if (count < 0) {
    return "-" + format_seconds(-span);
  }
  return fmt::format("{}.{:09}", count / kPerSecond, count % kPerSecond);
}

}  // namespace oomcast
