#include "sim/search/axis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/algorithm/string.hpp>
#include <charconv>
#include <cmath>
#include <optional>

#include "sim/core/units.hpp"

namespace oomcast::search {
namespace {

constexpr int kMostPlaces = 9;
constexpr std::int64_t kMostValues = 1'000'000;

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  boost::split(parts, text, [separator](char letter) { return letter == separator; });
  for (std::string& part : parts) {
    boost::trim(part);
  }
  return parts;
}

// Splits at commas outside of brackets and quotes: values may be JSON.
std::vector<std::string> split_values(std::string_view text) {
  std::vector<std::string> values(1);
  int depth = 0;
  bool quoted = false;
  for (const char letter : text) {
    quoted = letter == '"' ? !quoted : quoted;
    if (!quoted) {
      depth += letter == '{' || letter == '[' ? 1 : letter == '}' || letter == ']' ? -1 : 0;
      if (letter == ',' && depth <= 0) {
        values.emplace_back();
        continue;
      }
    }
    values.back() += letter;
  }
  for (std::string& value : values) {
    boost::trim(value);
  }
  return values;
}

std::int64_t power_of_ten(int exponent) {
  std::int64_t power = 1;
  for (int i = 0; i < exponent; ++i) {
    power *= 10;
  }
  return power;
}

class RangeReader {
 public:
  RangeReader(std::string_view name, std::string_view text, Problems& problems)
      : name_(name), text_(text), problems_(problems) {}

  // nullopt: no range at all.
  std::optional<std::vector<std::string>> read() {
    const auto dots = text_.find("..");
    if (dots == std::string_view::npos) {
      return std::nullopt;
    }
    const std::string_view behind = text_.substr(dots + 2);
    const auto sign = behind.find_first_of("+*");
    if (sign == std::string_view::npos) {
      return complain("a range with its step: FROM..TO+STEP or FROM..TO*FACTOR");
    }
    const auto from = parse_decimal(text_.substr(0, dots));
    const auto to = parse_decimal(behind.substr(0, sign));
    const auto step = parse_decimal(behind.substr(sign + 1));
    if (!from || !to || !step) {
      return complain("plain decimal numbers: FROM..TO+STEP or FROM..TO*FACTOR");
    }
    try {
      return behind[sign] == '+' ? sums(*from, *to, *step) : products(*from, *to, *step);
    } catch (const ArithmeticOverflow&) {
      return complain("smaller numbers");
    }
  }

 private:
  std::vector<std::string> complain(const std::string& expected) {
    problems_.add(
        {kCommandLine, fmt::format("--vary {}", name_), std::string(text_), expected, ""});
    return {};
  }

  std::vector<std::string> sums(Decimal from, Decimal to, Decimal step) {
    const int places = std::max({from.places, to.places, step.places});
    from = from.with_places(places);
    to = to.with_places(places);
    step = step.with_places(places);
    if (step.units <= 0 || to.units < from.units) {
      return complain("a rising range with a step above 0");
    }
    const std::int64_t count = (to.units - from.units) / step.units + 1;
    if (count > kMostValues) {
      return complain(fmt::format("at most {} values, not {}", kMostValues, count));
    }
    std::vector<std::string> values;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(to_text({from.units + i * step.units, places}));
    }
    return values;
  }

  std::vector<std::string> products(Decimal from, Decimal to, Decimal factor) {
    const int places = std::max(from.places, to.places);
    from = from.with_places(places);
    to = to.with_places(places);
    const std::int64_t unit = power_of_ten(factor.places);
    if (factor.units <= unit || from.units <= 0 || to.units < from.units) {
      return complain("a rising range above 0 with a factor above 1");
    }
    std::vector<std::string> values;
    std::int64_t last = 0;
    for (std::int64_t at = from.units; at <= to.units;
         at = detail::checked_mul(at, factor.units) / unit) {
      if (at == last) {
        return complain("a factor that changes the first value");
      }
      last = at;
      values.push_back(to_text({at, places}));
    }
    return values;
  }

  std::string_view name_;
  std::string_view text_;
  Problems& problems_;
};

}  // namespace

double Decimal::value() const { return static_cast<double>(units) / std::pow(10.0, places); }

Decimal Decimal::with_places(int more) const {
  return {detail::checked_mul(units, power_of_ten(more - places)), more};
}

std::optional<Decimal> parse_decimal(std::string_view text) {
  const bool negative = text.starts_with('-');
  const std::string_view digits = text.substr(negative ? 1 : 0);
  const auto point = digits.find('.');
  const std::string whole(digits.substr(0, point));
  const std::string part(point == std::string_view::npos ? "" : digits.substr(point + 1));
  const std::string all = whole + part;
  Decimal number;
  number.places = static_cast<int>(std::min<std::size_t>(part.size(), kMostPlaces + 1));
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), number.units);
  if (all.empty() || all.front() == '-' || number.places > kMostPlaces || error != std::errc{} ||
      end != all.data() + all.size()) {
    return std::nullopt;
  }
  number.units = negative ? -number.units : number.units;
  return number;
}

std::string to_text(const Decimal& number) {
  const std::int64_t unit = power_of_ten(number.places);
  const std::int64_t size = number.units < 0 ? -number.units : number.units;
  const char* sign = number.units < 0 ? "-" : "";
  return number.places == 0
             ? fmt::format("{}{}", sign, size)
             : fmt::format("{}{}.{:0{}}", sign, size / unit, size % unit, number.places);
}

Axis parse_axis(std::string_view text, Problems& problems) {
  Axis axis;
  const auto equals = text.find('=');
  if (equals == 0 || equals == std::string_view::npos || equals + 1 == text.size()) {
    problems.add({kCommandLine, "--vary", std::string(text),
                  "FLAG=VALUE,VALUE or FLAG=FROM..TO+STEP", "e.g. max-num-seqs=64..512*2"});
    return axis;
  }
  axis.names = split(text.substr(0, equals), '/');
  for (std::string& name : axis.names) {
    boost::trim_left_if(name, [](char letter) { return letter == '-'; });
    boost::replace_all(name, "_", "-");
  }
  const std::string joined = fmt::format("{}", fmt::join(axis.names, "/"));
  for (const std::string& value : split_values(text.substr(equals + 1))) {
    if (axis.names.size() > 1) {
      axis.values.push_back(split(value, '/'));
      if (axis.values.back().size() != axis.names.size()) {
        problems.add({kCommandLine, "--vary " + joined, value,
                      fmt::format("{} values with / between them", axis.names.size()), ""});
      }
      continue;
    }
    if (const auto range = RangeReader(joined, value, problems).read()) {
      for (const std::string& number : *range) {
        axis.values.push_back({number});
      }
    } else {
      axis.values.push_back({value});
    }
  }
  return axis;
}

}  // namespace oomcast::search
