#include "sim/search/limit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/core/units_text.hpp"

namespace oomcast::search {
namespace {

constexpr std::int64_t kMostTokens = 1 << 20;
constexpr std::int64_t kMostRequests = 1 << 16;

Range whole(std::int64_t low, std::int64_t high) { return {{low, 0}, {high, 0}, {1, 0}}; }

// Hundredths.
Range share(std::int64_t low, std::int64_t high) { return {{low, 2}, {high, 2}, {1, 2}}; }

// Changes worth trying: each knob of the deployment turned once, mildest first.
std::vector<LimitFix> candidates(const EngineDeployment& deployment, const std::string& searched) {
  std::vector<LimitFix> out;
  const auto add = [&](const Knob& knob, std::string value) {
    if (knob.flag != searched) {
      out.push_back({fmt::format("--{} {}", knob.flag, value), knob.flag, value, {}});
    }
  };
  for (const Knob& knob : deployment.knobs()) {
    const auto now = static_cast<std::int64_t>(knob.now);
    switch (knob.kind) {
      case Knob::Kind::kLess:
        for (std::int64_t value = now / 2;
             value >= std::max<std::int64_t>(now / 16, static_cast<std::int64_t>(knob.least));
             value /= 2) {
          add(knob, std::to_string(value));
        }
        break;
      case Knob::Kind::kLonger:
        for (std::int64_t value = now / 2; value >= std::max<std::int64_t>(now / 16, 1024);
             value /= 2) {
          add(knob, std::to_string(value));
        }
        break;
      case Knob::Kind::kFraction:
        for (const int change : {2, 4, -2, -4, -8}) {
          const int percent = static_cast<int>(knob.now * 100 + 0.5) + change;
          if (percent > 0 && percent <= 98) {
            add(knob, fmt::format("0.{:02}", percent));
          }
        }
        break;
      case Knob::Kind::kSwitch:
        add(knob, "true");
        break;
      case Knob::Kind::kValue:
        add(knob, knob.value);
        break;
      case Knob::Kind::kCards:
        add(knob, std::to_string(now * 2));
        break;
    }
  }
  return out;
}

class Finder {
 public:
  Finder(const PointBase& base, const Criterion& criterion)
      : base_(base), criterion_(criterion), runner_(base) {}

  Limit find(const LimitRequest& request) {
    Limit limit{request, {}, {}, std::nullopt, 0};
    limit.boundary = boundary(request);
    limit.evaluations = limit.boundary.evaluations;
    if (const Edge* edge = limit.boundary.upper()) {
      find_fixes(*edge, limit);
    }
    return limit;
  }

 private:
  Boundary boundary(const LimitRequest& request) {
    return find_boundary(
        request.range, criterion_,
        [&](const std::string& value) {
          return runner_.run(with(request.fixed, request.knob, value));
        },
        today(request.knob));
  }

  // The knob's value in the deployment as it was given.
  [[nodiscard]] std::optional<double> today(const std::string& knob) const {
    for (const Knob& turned : base_.deployment.common().knobs()) {
      if (turned.flag == knob) {
        return turned.now;
      }
    }
    return std::nullopt;
  }

  static Settings with(Settings settings, const std::string& knob, const std::string& value) {
    std::erase_if(settings, [&](const auto& setting) { return setting.first == knob; });
    settings.emplace_back(knob, value);
    return settings;
  }

  // At most one value a knob, the mildest that works.
  void find_fixes(const Edge& edge, Limit& limit) {
    const Settings beyond = with(limit.request.fixed, limit.request.knob, edge.breaks);
    std::vector<LimitFix> tried;
    try {
      tried = candidates(runner_.resolve(beyond).common(), limit.request.knob);
    } catch (const ConfigError&) {
      return;  // the engine refuses the value itself
    }
    for (LimitFix& fix : tried) {
      const bool known = std::any_of(limit.fixes.begin(), limit.fixes.end(),
                                     [&](const LimitFix& other) { return other.knob == fix.knob; });
      if (known) {
        continue;
      }
      const PointResult result = runner_.run(with(beyond, fix.knob, fix.value));
      if (criterion_.holds(result)) {
        fix.frees = std::max(Bytes{0}, result.headroom() - edge.broken.headroom());
        limit.fixes.push_back(fix);
      }
    }
    if (!limit.fixes.empty()) {
      LimitRequest eased = limit.request;
      eased.fixed = with(eased.fixed, limit.fixes.front().knob, limit.fixes.front().value);
      if (const Boundary then = boundary(eased); const Edge* next = then.upper()) {
        limit.next = *next;
      }
    }
  }

  const PointBase& base_;
  const Criterion& criterion_;
  PointRunner runner_;
};

OrderedJson number_or_text(const std::string& text) {
  const Json parsed = Json::parse(text, nullptr, false);
  return parsed.is_number() ? OrderedJson(parsed) : OrderedJson(text);
}

OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

void add_broken(const PointResult& point, const Criterion& criterion, OrderedJson& json) {
  json["kind"] = criterion.broken_by(point);
  json["phase"] = text_or_null(point.phase);
  json["class"] = text_or_null(point.leaf);
  json["short_by_bytes"] = point.short_by.count();
  json["message"] = point.message;
}

OrderedJson heading(const Limit& limit, const Criterion& criterion) {
  OrderedJson json;
  json["knob"] = limit.request.knob;
  OrderedJson& at = json["at"] = OrderedJson::object();
  for (const auto& [name, value] : limit.request.fixed) {
    at[name] = number_or_text(value);
  }
  json["until"] = criterion.text();
  json["range"] = {number_or_text(limit.request.range.at(0)),
                   number_or_text(limit.request.range.at(limit.request.range.count() - 1))};
  return json;
}

OrderedJson edge_json(const Limit& limit, const Edge& edge, const Criterion& criterion) {
  OrderedJson json = heading(limit, criterion);
  json["edge"] = edge.is_upper ? "upper" : "lower";
  json["value"] = number_or_text(edge.holds);
  json["first_bad"] = number_or_text(edge.breaks);
  add_broken(edge.broken, criterion, json);
  json["evaluations"] = limit.evaluations;
  json["fixes"] = OrderedJson::array();
  json["then"] = nullptr;
  if (&edge == limit.boundary.upper()) {
    for (const LimitFix& fix : limit.fixes) {
      json["fixes"].push_back({{"change", fix.change}, {"frees_bytes", fix.frees.count()}});
    }
    if (limit.next) {
      OrderedJson then = {{"with", limit.fixes.front().change},
                          {"value", number_or_text(limit.next->holds)},
                          {"first_bad", number_or_text(limit.next->breaks)}};
      add_broken(limit.next->broken, criterion, then);
      json["then"] = std::move(then);
    }
  }
  return json;
}

// The whole range is alike.
OrderedJson edgeless_json(const Limit& limit, const Criterion& criterion) {
  const Boundary& boundary = limit.boundary;
  OrderedJson json = heading(limit, criterion);
  json["edge"] = nullptr;
  json["value"] = boundary.high_holds
                      ? number_or_text(limit.request.range.at(limit.request.range.count() - 1))
                      : OrderedJson();
  json["first_bad"] =
      boundary.low_holds ? OrderedJson() : number_or_text(limit.request.range.at(0));
  if (boundary.low_holds) {
    json["kind"] = nullptr;
    json["phase"] = nullptr;
    json["class"] = nullptr;
    json["short_by_bytes"] = 0;
    json["message"] = "all of the range holds: the edge lies above it";
  } else {
    add_broken(boundary.at_low, criterion, json);
  }
  json["evaluations"] = limit.evaluations;
  json["fixes"] = OrderedJson::array();
  json["then"] = nullptr;
  return json;
}

std::string broken_text(const OrderedJson& json) {
  std::string out = json.at("kind").get<std::string>();
  if (!json.at("phase").is_null()) {
    out += " in phase " + json.at("phase").get<std::string>();
  }
  const Bytes missing{json.at("short_by_bytes").get<std::int64_t>()};
  if (!json.at("class").is_null() && missing > Bytes{0}) {
    out +=
        fmt::format(", {} short by {}", json.at("class").get<std::string>(), format_bytes(missing));
  }
  return out;
}

std::string shown(const OrderedJson& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

Range usual_range(const PointBase& base, const std::string& knob) {
  const EngineDeployment& deployment = base.deployment.common();
  const std::int64_t longest =
      std::max(deployment.model->length.derived, deployment.max_model_len).count();
  if (knob == kScaleKnob || knob == kPromptKnob) {
    return {{1, 2}, {10'000, 2}, {1, 2}};
  }
  if (knob == kRateKnob) {
    return {{1, 2}, {100'000, 2}, {1, 2}};
  }
  if (knob == kRequestsKnob || knob == kClientsKnob) {
    return whole(1, kMostRequests);
  }
  if (knob == kContextKnob) {
    return whole(16, deployment.max_model_len.count());
  }
  for (const Knob& turned : deployment.knobs()) {
    if (turned.flag != knob) {
      continue;
    }
    switch (turned.kind) {
      case Knob::Kind::kLess:
        return whole(std::max<std::int64_t>(1, static_cast<std::int64_t>(turned.least)),
                     kMostTokens);
      case Knob::Kind::kLonger:
        return whole(1, std::max<std::int64_t>(longest, 2));
      case Knob::Kind::kFraction:
        return share(1, 100);
      case Knob::Kind::kCards:
        return whole(1, 64);
      case Knob::Kind::kSwitch:
      case Knob::Kind::kValue:
        break;
    }
  }
  throw ConfigError(Problem{"command line", "--find", knob, "a knob with a range of its own",
                            "say where to look: --between LOW:HIGH"});
}

Limit find_limit(const PointBase& base, const Criterion& criterion, const LimitRequest& request) {
  return Finder(base, criterion).find(request);
}

OrderedJson limit_json(const std::vector<Limit>& limits, const Criterion& criterion) {
  OrderedJson json;
  json["schema"] = "oomcast.limit/1";
  json["limits"] = OrderedJson::array();
  for (const Limit& limit : limits) {
    const Edge* upper = limit.boundary.upper();
    if (upper != nullptr) {
      json["limits"].push_back(edge_json(limit, *upper, criterion));
    }
    for (const Edge& edge : limit.boundary.edges) {
      if (&edge != upper) {
        json["limits"].push_back(edge_json(limit, edge, criterion));
      }
    }
    if (limit.boundary.edges.empty()) {
      json["limits"].push_back(edgeless_json(limit, criterion));
    }
  }
  return json;
}

std::string limit_text(const OrderedJson& json) {
  std::string out;
  for (const OrderedJson& limit : json.at("limits")) {
    std::string name = limit.at("knob").get<std::string>();
    for (const auto& [setting, value] : limit.at("at").items()) {
      name += fmt::format(", {} {}", setting, shown(value));
    }
    if (limit.at("edge").is_null()) {
      out += limit.at("value").is_null()
                 ? fmt::format("{}: nothing from {} to {} holds: {}\n", name,
                               shown(limit.at("range")[0]), shown(limit.at("range")[1]),
                               broken_text(limit))
                 : fmt::format("{}: all from {} to {} holds; the edge lies above\n", name,
                               shown(limit.at("range")[0]), shown(limit.at("range")[1]));
    } else if (limit.at("edge") == "lower") {
      out += fmt::format("{}: holds from {} on; {} breaks: {}\n", name, shown(limit.at("value")),
                         shown(limit.at("first_bad")), broken_text(limit));
    } else {
      out +=
          fmt::format("{}: {} is the largest that holds; {} breaks: {}\n", name,
                      shown(limit.at("value")), shown(limit.at("first_bad")), broken_text(limit));
    }
    const auto message = limit.at("message").get<std::string>();
    if (!limit.at("kind").is_null() && !message.empty()) {
      out += "  " + message.substr(0, message.find('\n')) + "\n";
    }
    if (!limit.at("fixes").empty()) {
      out += fmt::format("  With {} these hold (each simulated):\n", shown(limit.at("first_bad")));
    }
    for (const OrderedJson& fix : limit.at("fixes")) {
      const Bytes frees{fix.at("frees_bytes").get<std::int64_t>()};
      out += fmt::format("    {:<40} {}\n", fix.at("change").get<std::string>(),
                         frees > Bytes{0} ? "headroom +" + format_bytes(frees) : "needs less");
    }
    if (!limit.at("then").is_null()) {
      const OrderedJson& then = limit.at("then");
      out += fmt::format("  Then {} is the largest, and {} breaks: {}\n", shown(then.at("value")),
                         shown(then.at("first_bad")), broken_text(then));
    }
    out += fmt::format("  {} simulated\n", limit.at("evaluations").get<int>());
  }
  return out;
}

}  // namespace oomcast::search
