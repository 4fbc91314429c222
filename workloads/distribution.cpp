#include "workloads/distribution.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"
#include "workloads/byte_source.hpp"

namespace oomcast::workloads {
namespace {

constexpr const char* kForms =
    "a number, fixed(N), uniform(LOW,HIGH), normal(MEAN,DEVIATION), lognormal(MEDIAN,SIGMA), "
    "exponential(MEAN) or empirical(FILE), each but fixed with max=N";
constexpr std::size_t kMostValues = 10'000'000;

class Formula : public Distribution {
 public:
  Formula(std::function<double(RandomStream&)> draw, double cap)
      : draw_(std::move(draw)), cap_(cap) {}
  [[nodiscard]] double draw(RandomStream& stream) const override {
    return std::min(draw_(stream), cap_);
  }

 private:
  std::function<double(RandomStream&)> draw_;
  double cap_;
};

struct Form {
  std::string name;
  std::vector<std::string> arguments;
  double cap = std::numeric_limits<double>::infinity();
};

[[noreturn]] void refuse(const std::string& place, std::string_view text, std::string hint = {}) {
  throw ConfigError(Problem{place.starts_with("--") ? "command line" : "--synthetic", place,
                            std::string(text), kForms, std::move(hint)});
}

Form split_form(std::string_view text, const std::string& place) {
  Form form;
  const std::size_t open = text.find('(');
  if (open == std::string_view::npos) {
    return {"fixed", {std::string(text)}};
  }
  if (!text.ends_with(')')) {
    refuse(place, text, "a closing parenthesis is missing");
  }
  form.name = text.substr(0, open);
  std::string_view inside = text.substr(open + 1, text.size() - open - 2);
  while (!inside.empty()) {
    const std::size_t comma = std::min(inside.find(','), inside.size());
    const std::string_view argument = inside.substr(0, comma);
    if (argument.starts_with("max=")) {
      const auto cap = parse_number(argument.substr(4));
      if (!cap || *cap <= 0) {
        refuse(place, argument, "max is a number above 0");
      }
      form.cap = *cap;
    } else {
      form.arguments.emplace_back(argument);
    }
    inside.remove_prefix(std::min(comma + 1, inside.size()));
  }
  return form;
}

// One value a line; a second column (after comma, tab or blank) is its weight.
std::unique_ptr<Distribution> read_empirical(const std::string& path, double cap) {
  LineReader lines(path);
  std::vector<double> values;
  std::vector<double> cumulative;
  double total = 0;
  std::string_view line;
  while (lines.next(line)) {
    if (line.empty() || line[0] == '#') {
      continue;
    }
    const std::size_t split = line.find_first_of(",\t ");
    const auto value = parse_number(line.substr(0, split));
    const auto weight =
        split == std::string_view::npos ? std::optional(1.0) : parse_number(line.substr(split + 1));
    if (!value && values.empty()) {
      continue;  // a header
    }
    if (!value || !weight || *value < 0 || *weight < 0 || values.size() >= kMostValues) {
      throw ConfigError(Problem{lines.name(), lines.place(), std::string(line),
                                "a value of at least 0, and a weight if any", ""});
    }
    total += *weight;
    values.push_back(*value);
    cumulative.push_back(total);
  }
  if (!(total > 0)) {
    throw ConfigError(Problem{path, "", "no values", "one value a line", ""});
  }
  return std::make_unique<Formula>(
      [values = std::move(values), cumulative = std::move(cumulative)](RandomStream& stream) {
        const double at = uniform01(stream) * cumulative.back();
        const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), at);
        const auto index =
            std::min(static_cast<std::size_t>(found - cumulative.begin()), values.size() - 1);
        return values[index];
      },
      cap);
}

// Box-Muller: one of the pair is enough, and the stream's use stays fixed at two draws.
double standard_normal(RandomStream& stream) { return std::log(lognormal(stream, 0, 1)); }

}  // namespace

std::unique_ptr<Distribution> parse_distribution(std::string_view text, const std::string& place) {
  const Form form = split_form(text, place);
  if (form.name == "empirical") {
    if (form.arguments.size() != 1) {
      refuse(place, text);
    }
    return read_empirical(form.arguments[0], form.cap);
  }
  std::vector<double> numbers;
  for (const std::string& argument : form.arguments) {
    const auto number = parse_number(argument);
    if (!number || *number < 0 || *number > 1e15) {
      refuse(place, text, "arguments are numbers of at least 0");
    }
    numbers.push_back(*number);
  }
  const auto takes = [&](std::size_t count) {
    if (numbers.size() != count) {
      refuse(place, text, fmt::format("{} takes {} numbers", form.name, count));
    }
  };
  std::function<double(RandomStream&)> draw;
  if (form.name == "fixed") {
    takes(1);
    draw = [value = numbers[0]](RandomStream&) { return value; };
  } else if (form.name == "uniform") {
    takes(2);
    const auto low = static_cast<std::int64_t>(std::llround(numbers[0]));
    const auto high = static_cast<std::int64_t>(std::llround(numbers[1]));
    if (low > high) {
      refuse(place, text, "the lower bound comes first");
    }
    draw = [low, high](RandomStream& stream) {
      return static_cast<double>(uniform_int(stream, low, high));
    };
  } else if (form.name == "normal") {
    takes(2);
    draw = [mean = numbers[0], deviation = numbers[1]](RandomStream& stream) {
      return mean + deviation * standard_normal(stream);
    };
  } else if (form.name == "lognormal") {
    takes(2);
    if (numbers[0] <= 0) {
      refuse(place, text, "the median is above 0");
    }
    draw = [mu = std::log(numbers[0]), sigma = numbers[1]](RandomStream& stream) {
      return lognormal(stream, mu, sigma);
    };
  } else if (form.name == "exponential") {
    takes(1);
    draw = [mean = numbers[0]](RandomStream& stream) { return mean * exponential1(stream); };
  } else {
    refuse(place, text,
           did_you_mean(form.name,
                        {"fixed", "uniform", "normal", "lognormal", "exponential", "empirical"}));
  }
  return std::make_unique<Formula>(std::move(draw), form.cap);
}

}  // namespace oomcast::workloads
