// What a KV connector adds to a recording: fields of a step line, the digest's text, totals.
#pragma once

#include <string>

#include "tests/golden/vllm_scenario.hpp"

namespace oomcast::golden {

// Reads the latest step of a run. Both must outlive it.
class TransferComparison {
 public:
  TransferComparison(const ScenarioRun& run, const Scenario& scenario)
      : run_(run), scenario_(scenario) {}

  void add_fields(OrderedJson& line) const;
  [[nodiscard]] std::string digest_text(bool counts) const;
  void count_step();
  void add_totals(OrderedJson& trailer) const;

 private:
  [[nodiscard]] const std::string& id(RequestId request) const {
    return scenario_.requests[request].id;
  }
  [[nodiscard]] OrderedJson id_list(const std::vector<RequestId>& requests) const;

  const ScenarioRun& run_;
  const Scenario& scenario_;
  std::int64_t external_ = 0;
  std::int64_t failed_ = 0;
  std::int64_t received_blocks_ = 0;
  std::int64_t sent_ = 0;
  std::int64_t loaded_ = 0;
  std::int64_t stored_ = 0;
  std::int64_t flushed_ = 0;
  vllm::TransferCounts peak_;
};

}  // namespace oomcast::golden
