#include "tests/golden/vllm_transfers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace oomcast::golden {
namespace {

void count_fields(const vllm::TransferCounts& counts, OrderedJson& line) {
  line["remote"] = counts.remote;
  line["arrived"] = counts.arrived;
  line["remote_blocks"] = counts.remote_blocks.count();
  line["held"] = counts.held;
  line["held_blocks"] = counts.held_blocks.count();
  line["deferred_blocks"] = counts.deferred_blocks.count();
  line["host_used"] = counts.host_used;
  line["host_evictable"] = counts.host_evictable;
  line["host_writing"] = counts.host_writing;
}

std::string received_mark(const vllm::TransferReport::Received& received, bool counts) {
  if (received.failed) {
    return "!";
  }
  if (received.bad_blocks.empty()) {
    return "";
  }
  return counts ? fmt::format("!{}", received.bad_blocks.size())
                : fmt::format("!{}", fmt::join(received.bad_blocks, "."));
}

template <typename Number>
std::string numbers_text(const std::vector<Number>& values, bool counts) {
  return counts ? std::to_string(values.size()) : fmt::format("{}", fmt::join(values, " "));
}

std::string blocks_text(const vllm::BlockLists& lists, bool counts) {
  std::string text;
  for (std::size_t g = 0; g < lists.size(); ++g) {
    text += (g == 0 ? "" : "/") + numbers_text(lists[g], counts);
  }
  return text;
}

}  // namespace

OrderedJson TransferComparison::id_list(const std::vector<RequestId>& requests) const {
  OrderedJson list = OrderedJson::array();
  for (const RequestId request : requests) {
    list.push_back(id(request));
  }
  return list;
}

void TransferComparison::add_fields(OrderedJson& line) const {
  const vllm::StepTransfers& transfers = run_.plan->transfers;
  for (const char* key : {"recv", "save", "load", "store", "handoff", "received"}) {
    line[key] = OrderedJson::object();
  }
  for (const vllm::Receive& one : transfers.receives) {
    line["recv"][id(one.id)] = {one.tokens.count(), one.blocks};
  }
  line["notify"] = id_list(transfers.notifies);
  for (const vllm::Save& one : transfers.saves) {
    line["save"][id(one.id)] = one.blocks;
  }
  line["send"] = id_list(transfers.sends);
  for (const vllm::LoadJob& one : transfers.loads) {
    line["load"][std::to_string(one.job)] = {id(one.id), one.tokens.count(), one.chunks,
                                             one.blocks};
  }
  for (const vllm::StoreJob& one : transfers.stores) {
    line["store"][std::to_string(one.job)] = {id(one.id), one.blocks, one.chunks};
  }
  line["flush"] = transfers.flushes;
  for (const char* key : {"sent", "jobs", "failed"}) {
    line[key] = OrderedJson::array();
  }
  if (run_.output != nullptr) {
    for (const vllm::Handoff& one : run_.output->handoffs) {
      line["handoff"][id(one.id)] = {one.tokens.count(), one.blocks};
    }
    for (const vllm::TransferReport::Received& one : run_.workers.received()) {
      line["received"][id(one.id)] = received_mark(one, false);
    }
    line["sent"] = id_list(run_.report->sent);
    line["jobs"] = run_.report->jobs;
    line["failed"] = id_list(run_.output->failed);
  }
  count_fields(run_.while_running, line);
  const vllm::TransferCounts end = run_.scheduler.transfers();
  count_fields(end, line["end"]);
  line["end"]["reserved"] = end.reserved_blocks.count();
}

std::string TransferComparison::digest_text(bool counts) const {
  const vllm::StepTransfers& transfers = run_.plan->transfers;
  std::string text;
  const auto list = [&](const auto& items, const char* separator, auto text_of) {
    std::string joined;
    for (const auto& item : items) {
      joined += (joined.empty() ? "" : separator) + text_of(item);
    }
    text += "|" + joined;
  };
  const auto name = [&](RequestId request) { return id(request); };
  const auto number = [](vllm::JobId job) { return std::to_string(job); };
  const auto moved = [&](const auto& one) {
    return fmt::format("{}:{}:{}", id(one.id), one.tokens.count(), blocks_text(one.blocks, counts));
  };
  list(transfers.receives, ";", moved);
  list(transfers.notifies, ",", name);
  list(transfers.saves, ";", [&](const vllm::Save& one) {
    return fmt::format("{}:{}", id(one.id), blocks_text(one.blocks, counts));
  });
  list(transfers.sends, ",", name);
  list(transfers.loads, ";", [&](const vllm::LoadJob& one) {
    return fmt::format("{}:{}:{}:{}:{}", one.job, id(one.id), one.tokens.count(),
                       numbers_text(one.chunks, counts), numbers_text(one.blocks, counts));
  });
  list(transfers.stores, ";", [&](const vllm::StoreJob& one) {
    return fmt::format("{}:{}:{}:{}", one.job, id(one.id), numbers_text(one.blocks, counts),
                       numbers_text(one.chunks, counts));
  });
  list(transfers.flushes, ",", number);
  const vllm::StepOutput no_output;
  const vllm::TransferReport no_report;
  const std::vector<vllm::TransferReport::Received> nothing;
  const bool due = run_.output != nullptr;
  const vllm::StepOutput& output = due ? *run_.output : no_output;
  const vllm::TransferReport& report = due ? *run_.report : no_report;
  list(output.handoffs, ";", moved);
  list(due ? run_.workers.received() : nothing, ",",
       [&](const vllm::TransferReport::Received& one) {
         return id(one.id) + received_mark(one, counts);
       });
  list(report.sent, ",", name);
  list(report.jobs, ",", number);
  list(output.failed, ",", name);
  for (const vllm::TransferCounts& state : {run_.while_running, run_.scheduler.transfers()}) {
    text += fmt::format("|{}:{}:{}:{}:{}:{}:{}:{}:{}", state.remote, state.arrived,
                        state.remote_blocks.count(), state.held, state.held_blocks.count(),
                        state.deferred_blocks.count(), state.host_used, state.host_evictable,
                        state.host_writing);
  }
  return text;
}

void TransferComparison::count_step() {
  const vllm::StepTransfers& transfers = run_.plan->transfers;
  for (const vllm::Receive& one : transfers.receives) {
    external_ += one.tokens.count();
    for (const vllm::BlockIds& blocks : one.blocks) {
      received_blocks_ += std::ssize(blocks);
    }
  }
  for (const vllm::LoadJob& one : transfers.loads) {
    external_ += one.tokens.count();
    loaded_ += std::ssize(one.chunks);
  }
  for (const vllm::StoreJob& one : transfers.stores) {
    stored_ += std::ssize(one.chunks);
  }
  flushed_ += std::ssize(transfers.flushes);
  failed_ += run_.output != nullptr ? std::ssize(run_.output->failed) : 0;
  sent_ += run_.report != nullptr ? std::ssize(run_.report->sent) : 0;
  for (const vllm::TransferCounts& state : {run_.while_running, run_.scheduler.transfers()}) {
    peak_.remote = std::max(peak_.remote, state.remote);
    peak_.remote_blocks = std::max(peak_.remote_blocks, state.remote_blocks);
    peak_.held = std::max(peak_.held, state.held);
    peak_.held_blocks = std::max(peak_.held_blocks, state.held_blocks);
    peak_.host_used = std::max(peak_.host_used, state.host_used);
  }
}

void TransferComparison::add_totals(OrderedJson& trailer) const {
  trailer["external_tokens"] = external_;
  trailer["failed"] = failed_;
  trailer["received_blocks"] = received_blocks_;
  trailer["sent"] = sent_;
  trailer["loaded_chunks"] = loaded_;
  trailer["stored_chunks"] = stored_;
  trailer["flushed_jobs"] = flushed_;
  trailer["peak"] = {{"remote", peak_.remote},
                     {"remote_blocks", peak_.remote_blocks.count()},
                     {"held", peak_.held},
                     {"held_blocks", peak_.held_blocks.count()},
                     {"host_used", peak_.host_used}};
}

}  // namespace oomcast::golden
