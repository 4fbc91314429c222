// Rows with logits, and what each runner and version samples with.
#include "sim/engines/vllm/step_builder.hpp"

namespace oomcast::vllm {

using models::DType;
using opgraph::Affine;
using opgraph::OpId;
using opgraph::TensorId;
using opgraph::TensorInfo;
using opgraph::Variable;

void StepBuilder::sample() {
  scope_ = "sampler";
  const std::int64_t vocabulary = model_.vocabulary;
  const bool v2 = deployment_.runner_v2;
  const Bytes unit = Bytes{4} * vocabulary;  // one row in fp32
  std::vector<TensorId> reads;
  if (!hidden_.empty()) {
    reads.push_back(*hidden_);
  }
  Variable last(graph_, apply("gather rows with logits", reads,
                              per_row("last hidden states", "R x H x b", element_ * model_.hidden,
                                      Leaf::kRuntimeActivations)));
  Variable dummy(graph_);
  if (kind_.sampling == Sampling::kProfile && !v2) {
    dummy = apply("rand_like", {*last},
                  per_row("made-up hidden states", "R x H x b", element_ * model_.hidden,
                          Leaf::kRuntimeActivations));
  }
  Variable logits(graph_);
  {
    const std::int64_t shard = align_up(vocabulary, kVocabularyPadding) / deployment_.tp;
    const OpId head = op("lm_head", {*last});
    make_cublas_workspace(head);
    logits = graph_.make(head, per_row(deployment_.tp > 1 ? "logits of this rank" : "logits",
                                       deployment_.tp > 1 ? "R x V/tp x b" : "R x V x b",
                                       element_ * (deployment_.tp > 1 ? shard : vocabulary)));
    if (deployment_.tp > 1) {
      // Gathered rank by rank, then put in rows (base_device_communicator.py).
      Variable gathered(graph_,
                        apply("all_gather", {*logits},
                              per_row("gathered logits", "R x V x b", element_ * vocabulary)));
      logits = apply("reshape", {*gathered}, per_row("logits", "R x V x b", element_ * vocabulary));
    }
  }
  // The second runner of 0.26 and later touches logits only for requests that ask for it.
  const bool as_they_are =
      v2 && ((kind_.sampling == Sampling::kProfile && profile_sampler_units(deployment_) <= 1.0) ||
             (kind_.sampling == Sampling::kGreedy && deployment_.rules.sampler_units_v2 != 1.5));
  if (as_they_are) {
    return;  // 16-bit logits are sampled as they are
  }
  Variable wide(graph_, *logits);
  if (deployment_.dtype != DType::kFloat32 || v2) {
    wide = apply("to fp32", {*logits}, per_row("logits, fp32", "R x V x 4", unit));
  }
  if (kind_.sampling == Sampling::kGreedy) {
    op("argmax", {*wide});
    return;
  }
  const bool profiles = kind_.sampling == Sampling::kProfile;
  const bool sorts = profiles && profile_sampler_units(deployment_) > 6;
  if (sorts) {
    sort_rows(*wide, unit);
  } else if (kind_.sampling == Sampling::kRandom || profile_sampler_units(deployment_) > 2) {
    draw(*wide, unit, v2);
  } else {
    op("draw", {*wide});
  }
  if (profiles && !v2 && deployment_.speculation) {
    wide.drop();
    check_made_up_drafts(logits, unit, sorts);
  }
}

// The first runner's profile lets its rejection sampler check a draft a row (gpu_model_runner.py
// _dummy_sampler_run, sample/rejection_sampler.py): logits of the drafts and of the tokens after
// them, those sampled as ever beside a copy, then drafts against their probabilities.
void StepBuilder::check_made_up_drafts(Variable& logits, Bytes unit, bool sorts) {
  const Version& version = deployment_.launch.version;
  constexpr Version kBothAtOnce{0, 11, 2};  // before, less than the sampler itself
  constexpr Version kCopied{0, 14, 0};
  constexpr Version kInverted{0, 17, 0};
  if (version < kBothAtOnce) {
    return;
  }
  const bool narrow = deployment_.dtype != DType::kFloat32;
  const Bytes row = element_ * model_.vocabulary;
  const auto in_fp32 = [&](const char* name, TensorId from) {
    return apply(name, {from}, per_row("logits, fp32", "R x V x 4", unit));
  };
  const TensorId both =
      apply("made-up logits", {},
            per_row("logits of drafts and of what follows", "2 R x V x b", row * 2));
  logits.drop();
  const TensorId after =
      apply("rows after drafts", {both}, per_row("logits after drafts", "R x V x b", row));
  const TensorId raw = in_fp32("raw logits", after);
  {
    Variable wide(graph_, narrow ? in_fp32("to fp32", after) : after);
    sorts ? sort_rows(*wide, unit) : draw_from(*wide, unit);
  }
  Variable drafts(graph_,
                  apply("rows of drafts", {both}, per_row("logits of drafts", "R x V x b", row)));
  if (narrow) {
    drafts = in_fp32("to fp32", *drafts);
  }
  Variable copy(graph_, version >= kCopied ? in_fp32("clone", *drafts) : *drafts);
  if (sorts) {
    sort_rows(*copy, unit);
  }
  std::vector<TensorId> held = {both, after, raw, *drafts, *copy};
  const auto make = [&](const char* op_name, const char* name) {
    held.push_back(apply(op_name, {held.back()}, per_row(name, "R x V x 4", unit)));
  };
  make("softmax", "probabilities of drafts");
  make("exponential noise", "exponential noise");
  if (version >= kInverted) {
    make("reciprocal", "inverse noise");
  }
  op("rejection", held);
}

void StepBuilder::draw(TensorId wide, Bytes unit, bool v2) {
  if (v2) {
    Variable masked(
        graph_, apply("top-k and top-p mask", {wide}, per_row("masked logits", "R x V x 4", unit)));
    make_row_state(*masked);
    Variable probabilities(
        graph_, apply("softmax", {*masked}, per_row("probabilities", "R x V x 4", unit)));
    op("draw", {*probabilities});
    return;
  }
  make_topk_buffer(wide);
  draw_from(wide, unit);
}

void StepBuilder::draw_from(TensorId wide, Bytes unit) {
  Variable probabilities(graph_,
                         apply("softmax", {wide}, per_row("probabilities", "R x V x 4", unit)));
  Variable noise(graph_, apply("exponential noise", {*probabilities},
                               per_row("exponential noise", "R x V x 4", unit)));
  op("argmax", {*probabilities, *noise});
}

void StepBuilder::make_row_state(TensorId beside) {
  if (!kind_.first_run) {
    return;
  }
  constexpr Bytes kRowState{std::int64_t{1} << 20};  // FlashInfer's, kept
  TensorInfo state{"FlashInfer row state", "1 MiB", Leaf::kModelBuffers, Affine::fixed(kRowState)};
  state.kept = true;
  graph_.make(op("row state", {beside}), std::move(state));
}

void StepBuilder::make_topk_buffer(TensorId beside) {
  const Bytes bytes = sampler_buffer(
      deployment_, std::min(deployment_.max_num_seqs, deployment_.max_num_batched_tokens.count()));
  if (!kind_.first_run || bytes == Bytes{0}) {
    return;
  }
  TensorInfo buffer{"top-k/top-p buffer", "min(pow2ceil(min(SM, R)), SM) x V x 4",
                    Leaf::kModelBuffers, Affine::fixed(bytes)};
  buffer.kept = true;
  graph_.make(op("top-k and top-p", {beside}), std::move(buffer));
}

void StepBuilder::sort_rows(TensorId wide, Bytes unit) {
  const OpId sort = op("segmented radix sort", {wide});
  const TensorId values = graph_.make(sort, per_row("sorted logits", "R x V x 4", unit));
  const TensorId indices =
      graph_.make(sort, per_row("sort indices, 64 bit", "R x V x 8", unit * 2));
  graph_.make(sort, per_row("reverse index, 64 bit", "R x V x 8", unit * 2));
  graph_.make(sort, per_row("radix sort scratch", "R x V x 12", unit * 3));
  Variable kept_values(graph_, values);
  Variable kept_indices(graph_, indices);
  op("mask", {values, indices, wide});
}

}  // namespace oomcast::vllm
