// Figures as people note them beside a log: "weights 15.11; KV 442750 K 27.02 V 27.02; pool 2.43".
// All are GiB where no unit stands. Tried on short texts only, and only for what no line of an
// engine told: such words mean too much elsewhere. Where two tables read as many figures, the first
// holds.
#include "sim/logs/templates.hpp"

namespace oomcast::logs {
namespace {

using namespace rows;
using enum Figure;
using enum FailureKind;

constexpr Row note(Row made) {
  for (std::size_t i = 0; i < made.capture_count; ++i) {
    made.captures[i].again = Again::kKeep;
  }
  return made;
}

constexpr std::array kVllmNotes = {
    note(row(R"(\b(?:activation|peak activation)(?: peak)?:? {d}\b)", gib(kActivationPeak))),
    note(row(R"(\bnon-torch:? {d}\b)", gib(kNonTorch))),
    note(row(R"((?:[Ww]eights?(?:/GPU)?|model weights):? {d}(?: GiB)?(?:[,;]| \||$))",
             gib(kWeights))),
    note(row(R"(\bKV(?: cache budget| pool)?:? {d} ?GiB)", gib(kAvailableKv))),
    note(row(R"(requested budget {d} GiB)", gib(kRequested))),
    note(row(R"(of a {d} GiB card)", gib(kTotal))),
    note(row(R"(: {d} GiB, [\d,]+ tokens)", gib(kAvailableKv))),
    note(row(R"(\| {d} GiB(?: \(\S+\))? \|)", gib(kAvailableKv))),
    note(row(R"({n}(?: |-)tokens?\b)", count(kKvTokens))),
    note(row(R"({n}-token KV cache)", count(kKvTokens))),
    note(row(R"(max concurrency {n}\b)", count(kMaxConcurrency))),
    note(row(R"({n}x(?: vs [\d.]+x)?(?: \(TP\d+\))? max concurrency|\({n}x\))",
             count(kMaxConcurrency), count(kMaxConcurrency))),
    note(row(R"(\b{n} blocks\b.*exceeds available Mamba)", count(kStateBlocks))),
    note(row(R"(CUDA-graph private pool {size})", Capture{kGraphPool, Unit::kAsWritten})),
    fails(note(row(R"(max_num_seqs {n} exceeds available Mamba cache blocks)", count(kMaxNumSeqs))),
          kConfigRejected, Phase::kKv),
    fails(row(R"(sampler warm-?up OOM)"), kStartupOom, Phase::kWarmup),
    fails(row(R"(\bOOM\b.*(?:from|in) .*graph capture|dies in CUDA graph capture)"), kStartupOom,
          Phase::kCapture),
};

constexpr std::array kSglangNotes = {
    note(row(R"(\bavail(?: after load)?:? {d})", gib(kFreeAfterLoad))),
    note(row(R"(\bbegin {d}; end(?: avail)? {d})", gib(kFreeAtStart), gib(kFreeAfterLoad))),
    note(row(R"(\bweights {d}\b)", gib(kWeights))),
    note(row(R"(\bmem usage {d})", gib(kWeights))),
    note(row(R"(\bKV (?:Cache )?(?:#tokens: )?{n},? K {d} V {d})", count(kKvTokens), gib(kKeys),
             gib(kValues))),
    note(row(R"(; K {d} V {d})", gib(kKeys), gib(kValues))),
    note(row(R"(#tokens: {n}, K {d})", count(kKvTokens), gib(kKeys))),
    note(row(R"(\bpool(?: end)? {d})", gib(kFreeAfterPool))),
    note(row(R"(\bgraph {d})", gib(kGraphs))),
    note(row(R"(\bgraph mem usage={d} avail {d})", gib(kGraphs), gib(kFreeWhenReady))),
    note(row(R"(graph end: mem usage={d} GB avail={d})", gib(kGraphs), gib(kFreeWhenReady))),
    note(row(R"(\bavailable_gpu_mem[ =]{d})", gib(kFreeWhenReady))),
    note(row(R"(\bgraph .*; avail {d})", gib(kFreeWhenReady))),
    note(row(R"(\bmamba {n} (?:slots conv )?{d} (?:ssm|\+) {d})", count(kStateSlots),
             gib(kConvState), gib(kSsmState))),
    note(row(R"(max_total_num_tokens={n})", count(kKvTokens))),
    note(row(R"(\bmax_running {n})", count(kMaxRunning))),
    note(row(R"(\bctx {n})", count(kMaxModelLen))),
};

constexpr std::array kTrtllmNotes = {
    note(row(R"(\btotal {d}(?: GiB)?, available {d})", gib(kTotal), gib(kFreeForKv))),
    note(row(R"({n} blocks x {n})", count(kKvBlocks), count(kBlockSize))),
    note(row(R"(= {n} tokens, {d} GiB)", count(kKvTokens), gib(kAvailableKv))),
    note(row(R"({d} GiB for max tokens \({n}\))", gib(kAvailableKv), count(kKvTokens))),
    note(row(R"(; {n} blocks\b)", count(kKvBlocks))),
};

}  // namespace

std::span<const Table, kNoteTables> note_tables() {
  static const std::array<Table, kNoteTables> kTables = {{{launch::Engine::kVllm, kVllmNotes},
                                                          {launch::Engine::kSglang, kSglangNotes},
                                                          {launch::Engine::kTrtllm, kTrtllmNotes}}};
  return kTables;
}

}  // namespace oomcast::logs
