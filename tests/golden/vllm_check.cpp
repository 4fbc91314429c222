// Comparison of a run with its recording, field by field and by both digests.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/core/digest.hpp"
#include "tests/golden/recording.hpp"
#include "tests/golden/vllm_scenario.hpp"
#include "tests/golden/vllm_transfers.hpp"

namespace oomcast::golden {
namespace {

using Line = OrderedJson;

struct Totals {
  std::int64_t tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t finished = 0;
  std::int64_t hits = 0;
};

class Comparison {
 public:
  Comparison(const Scenario& scenario)
      : scenario_(scenario), run_(scenario, true), transfers_(run_, scenario) {}

  std::string header();
  std::string step(const Line* recorded);
  std::string trailer(const Line& recorded);
  ScenarioRun& run() { return run_; }

 private:
  [[nodiscard]] const std::string& id(RequestId request) const {
    return scenario_.requests[request].id;
  }
  template <typename Ids>
  Line id_list(const Ids& ids) const;
  Line fields() const;
  Line block_lists(const vllm::ScheduledRequest& request) const;
  void extend_digests();
  void extend_blocks(const vllm::ScheduledRequest& request);
  void add(std::string_view text) {
    digest_.add(text);
    digest_counts_.add(text);
  }
  template <typename Ids>
  void add_ids(const Ids& ids);
  [[nodiscard]] std::string difference(const std::string& field, const std::string& expected,
                                       const std::string& got) const;

  const Scenario& scenario_;
  ScenarioRun run_;
  TransferComparison transfers_;
  Digest digest_;
  Digest digest_counts_;
  Totals totals_;
};

std::string Comparison::difference(const std::string& field, const std::string& expected,
                                   const std::string& got) const {
  return fmt::format("step {} field {}: expected {}, got {}", run_.now, field, expected, got);
}

template <typename Ids>
Line Comparison::id_list(const Ids& ids) const {
  Line list = Line::array();
  for (const auto request : ids) {
    list.push_back(id(request));
  }
  return list;
}

Line Comparison::block_lists(const vllm::ScheduledRequest& request) const {
  const vllm::StepPlan& plan = *run_.plan;
  Line groups = Line::array();
  std::size_t position = request.first_block;
  for (std::size_t g = 0; g < scenario_.config.groups.size(); ++g) {
    Line blocks = Line::array();
    for (std::int32_t i = 0; i < plan.detail_group_blocks[request.first_group + g]; ++i) {
      blocks.push_back(plan.detail_blocks[position++]);
    }
    groups.push_back(std::move(blocks));
  }
  return groups;
}

// Our step in the recording's words.
Line Comparison::fields() const {
  const vllm::StepPlan& plan = *run_.plan;
  Line line;
  line["i"] = run_.executed - 1;
  line["step"] = run_.now;
  for (const char* key : {"scheduled", "num_computed_tokens", "new_blocks", "prefix_hit_tokens",
                          "drafts", "sampled"}) {
    line[key] = Line::object();
  }
  line["new"] = Line::array();
  line["resumed"] = Line::array();
  std::vector<std::pair<std::string, std::int64_t>> resumed_hits;
  for (const vllm::ScheduledRequest& request : plan.detail) {
    const std::string& name = id(request.id);
    line["scheduled"][name] = request.tokens;
    line["num_computed_tokens"][name] = request.computed;
    line["new_blocks"][name] = block_lists(request);
    if (request.drafts > 0) {
      line["drafts"][name] = request.drafts;
    }
    if (request.kind == vllm::ScheduledRequest::Kind::kNew) {
      line["new"].push_back(name);
      line["prefix_hit_tokens"][name] = request.hit;
    } else if (request.kind == vllm::ScheduledRequest::Kind::kResumed) {
      line["resumed"].push_back(name);
      resumed_hits.emplace_back(name, request.hit);
    }
  }
  for (const auto& [name, hit] : resumed_hits) {
    line["prefix_hit_tokens"][name] = hit;  // recorded behind those of the new ones
  }
  line["preempted"] = id_list(plan.preempted);
  line["finished"] = Line::array();
  if (run_.output != nullptr) {
    for (const auto& [request, tokens] : run_.output->detail_sampled) {
      line["sampled"][id(request)] = tokens;
    }
    line["finished"] = id_list(run_.output->finished);
  }
  line["aborted"] = id_list(run_.aborted);
  line["rejected"] = id_list(run_.rejected);
  line["free_blocks"] = plan.blocks.free.count();
  line["running"] = plan.running;
  line["waiting"] = plan.waiting;
  line["end"] = {{"free_blocks", run_.scheduler.blocks().free.count()},
                 {"running", run_.scheduler.running()},
                 {"waiting", run_.scheduler.waiting()}};
  if (scenario_.config.connector) {
    transfers_.add_fields(line);
  }
  line["digest"] = digest_.hex();
  line["digest_counts"] = digest_counts_.hex();
  return line;
}

template <typename Ids>
void Comparison::add_ids(const Ids& ids) {
  bool first = true;
  for (const auto request : ids) {
    add(first ? "" : ",");
    add(id(request));
    first = false;
  }
  add("|");
}

void Comparison::extend_blocks(const vllm::ScheduledRequest& request) {
  const vllm::StepPlan& plan = *run_.plan;
  std::size_t position = request.first_block;
  for (std::size_t g = 0; g < scenario_.config.groups.size(); ++g) {
    const std::int32_t count = plan.detail_group_blocks[request.first_group + g];
    add(g == 0 ? "" : "/");
    digest_counts_.add(fmt::format("{}", count));
    digest_.add(fmt::format("{}", fmt::join(plan.detail_blocks.data() + position,
                                            plan.detail_blocks.data() + position + count, " ")));
    position += static_cast<std::size_t>(count);
  }
}

void Comparison::extend_digests() {
  const vllm::StepPlan& plan = *run_.plan;
  const vllm::StepOutput none;
  const vllm::StepOutput& output = run_.output != nullptr ? *run_.output : none;
  add(fmt::format("{}|", run_.now));
  add_ids(run_.rejected);
  add_ids(run_.aborted);
  add_ids(plan.preempted);
  constexpr const char* kKinds[] = {"n", "r", "c"};
  for (std::size_t i = 0; i < plan.detail.size(); ++i) {
    const vllm::ScheduledRequest& request = plan.detail[i];
    add(fmt::format("{}{}:{}:{}:{}:{}:", i == 0 ? "" : ";", id(request.id),
                    kKinds[static_cast<std::size_t>(request.kind)], request.tokens,
                    request.computed, request.drafts));
    extend_blocks(request);
  }
  add("|");
  for (std::size_t i = 0; i < output.detail_sampled.size(); ++i) {
    add(fmt::format("{}{}:{}", i == 0 ? "" : ",", id(output.detail_sampled[i].first),
                    output.detail_sampled[i].second));
  }
  add("|");
  add_ids(output.finished);
  add(fmt::format("{}:{}:{}|{}:{}:{}", plan.blocks.free.count(), plan.running, plan.waiting,
                  run_.scheduler.blocks().free.count(), run_.scheduler.running(),
                  run_.scheduler.waiting()));
  if (scenario_.config.connector) {
    digest_.add(transfers_.digest_text(false));
    digest_counts_.add(transfers_.digest_text(true));
  }
  add("\n");
}

std::string Comparison::step(const Line* recorded) {
  const vllm::StepPlan& plan = *run_.plan;
  totals_.tokens += plan.tokens.count();
  totals_.preemptions += static_cast<std::int64_t>(plan.preempted.size());
  totals_.finished +=
      run_.output != nullptr ? static_cast<std::int64_t>(run_.output->finished.size()) : 0;
  transfers_.count_step();
  extend_digests();
  if (recorded == nullptr) {
    return "";
  }
  const Line ours = fields();
  for (const auto& [field, expected] : recorded->items()) {
    if (field == "usage") {
      const double usage =
          1.0 - static_cast<double>(plan.blocks.free.count()) /
                    static_cast<double>(std::max<std::int64_t>(plan.blocks.total.count(), 1));
      if (!expected.is_number() || std::abs(expected.get<double>() - usage) > 5.1e-7) {
        return difference(field, expected.dump(), fmt::format("{:.6f}", usage));
      }
      continue;
    }
    if (!ours.contains(field)) {
      return difference(field, "a field that is known", field);
    }
    if (ours[field] != expected) {
      return difference(field, expected.dump(), ours[field].dump());
    }
  }
  for (const char* field :
       {"drafts", "aborted", "rejected", "recv", "notify", "save", "send", "load", "store", "flush",
        "handoff", "received", "sent", "jobs", "failed"}) {
    if (!recorded->contains(field) && ours.contains(field) && !ours[field].empty()) {
      return difference(field, "nothing", ours[field].dump());
    }
  }
  return "";
}

std::string Comparison::header() {
  const vllm::Derived derived = run_.scheduler.derived();
  const Json ours = {{"scheduler_block_size", derived.scheduler_block_size.count()},
                     {"hash_block_size", derived.hash_block_size.count()},
                     {"pipeline_depth", derived.pipeline_depth},
                     {"num_lookahead_tokens", derived.num_lookahead_tokens},
                     {"num_hash_lookahead_tokens", derived.num_hash_lookahead_tokens},
                     {"eagle_block_drop", derived.eagle_block_drop},
                     {"draft_slots", derived.draft_slots},
                     {"defer_block_free", derived.defer_block_free},
                     {"requires_kv_delivery", derived.requires_kv_delivery},
                     {"spec_decode_step_blocks", derived.spec_decode_step_blocks}};
  for (const auto& [key, expected] : scenario_.derived.items()) {
    if (!ours.contains(key) || ours[key] != expected) {
      return fmt::format("header field derived.{}: expected {}, got {}", key, expected.dump(),
                         ours.contains(key) ? ours[key].dump() : "nothing");
    }
  }
  return "";
}

std::string Comparison::trailer(const Line& recorded) {
  Line ours = {{"end", true},
               {"steps", run_.executed},
               {"scheduled_tokens", totals_.tokens},
               {"preemptions", totals_.preemptions},
               {"finished", totals_.finished},
               {"prefix_hit_tokens", run_.scheduler.prefix_hit_tokens().count()},
               {"unfinished", run_.scheduler.running() + run_.scheduler.waiting()},
               {"digest", digest_.hex()},
               {"digest_counts", digest_counts_.hex()}};
  transfers_.add_totals(ours);
  for (const auto& [field, expected] : recorded.items()) {
    if (!ours.contains(field) || ours[field] != expected) {
      return fmt::format("trailer field {}: expected {}, got {}", field, expected.dump(),
                         ours.contains(field) ? ours[field].dump() : "nothing");
    }
  }
  return "";
}

}  // namespace

std::string check_recording(std::istream& in, const std::string& path, const Scenario& scenario) {
  Comparison comparison(scenario);
  if (std::string found = comparison.header(); !found.empty()) {
    return found;
  }
  std::string line;
  std::int64_t number = 1;
  while (next_line(in, path, line)) {
    ++number;
    const Line recorded = Line::parse(line, nullptr, false);
    if (!recorded.is_object()) {
      throw ConfigError(Problem{path, fmt::format("line {}", number), "", "a JSON object", {}});
    }
    if (recorded.contains("end") && recorded["end"].is_boolean()) {
      const auto last = recorded.value("steps", std::int64_t{0});
      while (comparison.run().executed < last && comparison.run().step()) {
        if (std::string found = comparison.step(nullptr); !found.empty()) {
          return found;
        }
      }
      std::string found = comparison.trailer(recorded);
      if (found.empty() && comparison.run().step()) {
        found = fmt::format("trailer field steps: expected {}, got more", last);
      }
      return found;
    }
    const std::int64_t i = recorded.value("i", std::int64_t{-1});
    if (i < comparison.run().executed) {
      throw ConfigError(Problem{
          path, fmt::format("line {}", number), fmt::format("i {}", i), "steps in order", {}});
    }
    while (comparison.run().executed <= i) {
      if (!comparison.run().step()) {
        return fmt::format("step {} field i: expected {}, got the end after {} steps",
                           comparison.run().now, i, comparison.run().executed);
      }
      const bool due = comparison.run().executed == i + 1;
      if (std::string found = comparison.step(due ? &recorded : nullptr); !found.empty()) {
        return found;
      }
    }
  }
  throw ConfigError(Problem{path, "end of file", "", "a trailer", "the recording is cut off"});
}

std::string check_fast_forward(const Scenario& scenario) {
  constexpr std::int64_t kMaxSteps = 60'000;  // a request that never fits would run for ever
  ScenarioRun slow(scenario, true);
  ScenarioRun fast(scenario, false);
  const auto differ = [&](const char* what, auto expected, auto got) {
    return fmt::format("step {} {}: expected {}, got {}", slow.now, what, expected, got);
  };
  while (fast.executed < kMaxSteps && fast.step()) {
    while (slow.executed < fast.executed) {
      if (!slow.step()) {
        return differ("end", "one step less", "one step more");
      }
    }
    if (slow.plan->tokens != fast.plan->tokens) {
      return differ("tokens", slow.plan->tokens.count(), fast.plan->tokens.count());
    }
    if (slow.plan->decode_context != fast.plan->decode_context) {
      return differ("context", slow.plan->decode_context.count(),
                    fast.plan->decode_context.count());
    }
    if (slow.plan->preempted != fast.plan->preempted) {
      return differ("preempted", slow.plan->preempted.size(), fast.plan->preempted.size());
    }
    if (slow.output != nullptr && (slow.output->finished != fast.output->finished ||
                                   slow.output->sampled != fast.output->sampled ||
                                   slow.output->first_token != fast.output->first_token)) {
      return differ("output", slow.output->sampled.count(), fast.output->sampled.count());
    }
    // The complete state costs time proportional to the pool: large pools are looked at now and
    // then.
    const bool look = scenario.config.num_gpu_blocks < Blocks{64} || fast.executed % 16 == 0;
    if (look && slow.scheduler.state_digest() != fast.scheduler.state_digest()) {
      return differ("state", "one state", "another");
    }
    if (look) {
      slow.scheduler.check_conservation();
    }
    const std::int64_t steps = fast.jump();
    for (std::int64_t i = 0; i < steps; ++i) {
      slow.step();
      const std::int64_t context =
          fast.steady->first_context.count() + i * fast.steady->decode_requests;
      if (slow.plan->requests != fast.steady->decode_requests ||
          slow.plan->decode_context.count() != context || !slow.plan->admitted.empty() ||
          !slow.plan->preempted.empty()) {
        return differ("steady step", fast.steady->decode_requests, slow.plan->requests);
      }
      // Results come with the first.
      using Ids = std::span<const RequestId>;
      const auto same = [i](const std::vector<RequestId>& got, Ids jumped) {
        const Ids wanted = i == 0 ? jumped : Ids{};
        return std::equal(got.begin(), got.end(), wanted.begin(), wanted.end());
      };
      if (slow.output != nullptr && (!same(slow.output->first_token, fast.steady->first_token) ||
                                     !same(slow.output->finished, fast.steady->finished))) {
        return differ("steady output", fast.steady->finished.size(), slow.output->finished.size());
      }
      if (i == 1 && slow.plan->blocks.free != fast.steady->second.free) {
        return differ("steady blocks", fast.steady->second.free.count(),
                      slow.plan->blocks.free.count());
      }
    }
    if (steps > 0 && (slow.plan->blocks.free != fast.steady->last.free ||
                      (look && slow.scheduler.state_digest() != fast.scheduler.state_digest()))) {
      return differ("state after steady steps", "one state", "another");
    }
  }
  return fast.executed < kMaxSteps && slow.step() ? differ("end", "further steps", "none") : "";
}

}  // namespace oomcast::golden
