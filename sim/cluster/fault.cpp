#include "sim/cluster/fault.hpp"

#include <fmt/format.h>

#include <array>
#include <boost/algorithm/string/classification.hpp>
#include <boost/algorithm/string/split.hpp>
#include <boost/algorithm/string/trim.hpp>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "sim/core/units_text.hpp"

namespace oomcast::cluster {
namespace {

constexpr const char* kGrammar =
    "kill|drop|slow prefill|decode N [to P%] at TIME [for TIME], e.g. `kill prefill 0 at 12s`";
constexpr double kMostSeconds = 1e9;
// Below, a transfer outlasts any run: that is `drop`, or `kill`.
constexpr double kLeastPercent = 0.01;

std::optional<Nanos> span_of(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 4> kUnits = {
      {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}}};
  for (const auto& [unit, seconds] : kUnits) {
    if (!text.ends_with(unit)) {
      continue;
    }
    const auto value = parse_number(text.substr(0, text.size() - unit.size()));
    if (!value || !(*value >= 0 && *value * seconds <= kMostSeconds)) {
      return std::nullopt;
    }
    return Nanos{std::llround(*value * seconds * 1e9)};
  }
  return std::nullopt;
}

std::optional<double> share_of(std::string_view text) {
  if (!text.ends_with('%')) {
    return std::nullopt;
  }
  const auto percent = parse_number(text.substr(0, text.size() - 1));
  return percent && *percent >= kLeastPercent && *percent <= 100 ? std::optional(*percent / 100)
                                                                 : std::nullopt;
}

class Words {
 public:
  explicit Words(std::string_view text) {
    const std::string trimmed = boost::trim_copy(std::string(text));
    boost::split(words_, trimmed, boost::is_space(), boost::token_compress_on);
  }
  [[nodiscard]] std::string next() { return at_ < words_.size() ? words_[at_++] : ""; }
  // Whether this word comes next; it is then passed.
  bool take(std::string_view word) {
    const bool found = at_ < words_.size() && words_[at_] == word;
    at_ += found ? 1 : 0;
    return found;
  }
  [[nodiscard]] bool done() const { return at_ == words_.size(); }

 private:
  std::vector<std::string> words_;
  std::size_t at_ = 0;
};

}  // namespace

std::optional<Fault> parse_fault(std::string_view text, const PoolSizes& pools,
                                 Problems& problems) {
  const auto refuse = [&](std::string expected, std::string hint = "") {
    problems.add(
        {"command line", "--inject", std::string(text), std::move(expected), std::move(hint)});
    return std::nullopt;
  };
  Fault fault;
  fault.text = text;
  Words words(text);
  if (words.take("slow")) {
    fault.kind = Fault::Kind::kSlow;
  } else if (words.take("drop")) {
    fault.kind = Fault::Kind::kDrop;
  } else if (!words.take("kill")) {
    return refuse(kGrammar);
  }
  if (words.take("decode")) {
    fault.role = KvHandoff::Role::kDecode;
  } else if (!words.take("prefill")) {
    return refuse(kGrammar);
  }
  const bool decode = fault.role == KvHandoff::Role::kDecode;
  const std::size_t servers = decode ? pools.decode : pools.prefill;
  const std::string number = words.next();
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), fault.server);
  if (error != std::errc{} || end != number.data() + number.size() || fault.server >= servers) {
    return refuse(fmt::format("a {} server from 0 to {}", decode ? "decode" : "prefill",
                              servers == 0 ? 0 : servers - 1),
                  fmt::format("there {} {}", servers == 1 ? "is" : "are", servers));
  }
  if (fault.kind == Fault::Kind::kSlow) {
    const auto share = words.take("to") ? share_of(words.next()) : std::nullopt;
    if (!share) {
      return refuse(fmt::format("slow … to P%, from {} to 100", kLeastPercent));
    }
    fault.share = *share;
  }
  const auto at = words.take("at") ? span_of(words.next()) : std::nullopt;
  if (!at) {
    return refuse("… at TIME, e.g. 12s, 500ms or 2m");
  }
  fault.at = SimTime{*at};
  if (fault.kind == Fault::Kind::kSlow && words.take("for")) {
    const auto span = span_of(words.next());
    if (!span) {
      return refuse("… for TIME, e.g. 20s");
    }
    fault.until = fault.at + *span;
  }
  return words.done() ? std::optional(fault) : refuse(kGrammar);
}

}  // namespace oomcast::cluster
