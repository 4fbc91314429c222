#include "sim/run/calibration_fit.hpp"

#include <fmt/format.h>

#include <Eigen/QR>
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "sim/core/error.hpp"
#include "sim/fit/least_squares.hpp"
#include "sim/run/explain_waterfall.hpp"

namespace oomcast {
namespace {

using logs::Figure;
using Deltas = Eigen::VectorXd;  // bytes, in the order of kKinds

// In the order in which they may explain a figure: where two explain it equally, the first does.
enum class Kind : std::uint8_t {
  kLoad,
  kActivation,
  kGraph,
  kCollectives,
  kNonTorch,
  kContext,
  kTotal,
};
struct KindRow {
  Kind kind;
  const char* name;
  double step;    // bytes by which it is changed to see what depends on it
  double spread;  // bytes by which presets are commonly off: holds what figures hardly tell
};
constexpr std::array<KindRow, 7> kKinds = {
    {{Kind::kLoad, "load_residual_mib", 32 * kMebi, 512 * kMebi},
     {Kind::kActivation, "activation_offset_mib", 32 * kMebi, 512 * kMebi},
     {Kind::kGraph, "graph_residual_mib", kMebi, 16 * kMebi},  // a captured graph
     {Kind::kCollectives, "collectives_residual_mib", 32 * kMebi, 512 * kMebi},
     {Kind::kNonTorch, "non_torch_residual_mib", 32 * kMebi, 512 * kMebi},
     {Kind::kContext, "context_mib", 32 * kMebi, 128 * kMebi},
     {Kind::kTotal, "device_total_mib", 32 * kMebi, 256 * kMebi}}};
constexpr Eigen::Index kKindCount = kKinds.size();

// Figures that are measured memory; counts follow from them.
constexpr std::array<Figure, 13> kFigures = {
    Figure::kTotal,          Figure::kFreeAtStart, Figure::kWeights,       Figure::kDraftWeights,
    Figure::kActivationPeak, Figure::kNonTorch,    Figure::kConsumed,      Figure::kGraphEstimate,
    Figure::kGraphs,         Figure::kAvailableKv, Figure::kFreeAfterLoad, Figure::kFreeAfterPool,
    Figure::kFreeWhenReady};

Bytes bytes_of(double value) { return Bytes{std::llround(value)}; }

void shift(EngineDeployment& deployment, const Deltas& deltas) {
  const auto delta = [&](Kind kind) { return bytes_of(deltas[static_cast<Eigen::Index>(kind)]); };
  Residuals& residuals = deployment.assumed.residuals;
  residuals.load += delta(Kind::kLoad);
  residuals.activation += delta(Kind::kActivation);
  residuals.graph += delta(Kind::kGraph);
  residuals.collectives += delta(Kind::kCollectives);
  residuals.non_torch += delta(Kind::kNonTorch);
  models::GpuSpec& gpu = deployment.gpu;
  gpu.context_bytes += delta(Kind::kContext);
  gpu.device_total += delta(Kind::kTotal);
}

// A sample's logged figure, and where it stands.
struct Equation {
  std::size_t sample = 0;
  Figure figure = Figure::kTotal;
  double logged = 0;
  double weight = 0;  // one over the half of the last printed digit
  std::int64_t line = 0;
};

class Fit {
 public:
  Fit(const std::vector<CalibrationSample>& samples, const Calibration& known)
      : samples_(samples), known_(known) {
    for (const CalibrationSample& sample : samples) {
      deployments_.push_back(resolve_input(sample.input));
    }
    check_same();
    take_known();
    collect();
  }

  CalibrationFit run() {
    Deltas deltas = Deltas::Zero(kKindCount);
    const Eigen::MatrixXd slopes = slopes_at(deltas);
    const std::vector<Eigen::Index> chosen = choose(slopes);
    // The startup is all but linear: rounding to blocks and the engine's own limits are the rest.
    constexpr int kRounds = 4;
    for (int round = 0; round < kRounds && !chosen.empty(); ++round) {
      const Eigen::MatrixXd now = round == 0 ? slopes : slopes_at(deltas);
      const auto update = fit::least_squares(with_spreads(now(Eigen::all, chosen), chosen),
                                             with_spreads(misfits_at(deltas), deltas, chosen));
      if (!update) {
        break;
      }
      const Deltas before = deltas;
      for (Eigen::Index i = 0; i < update->values.size(); ++i) {
        deltas[chosen[static_cast<std::size_t>(i)]] += update->values[i];
      }
      keep_positive(deltas);
      if ((deltas - before).cwiseAbs().maxCoeff() < kMebi / 16) {
        break;
      }
    }
    return result(deltas, slopes, chosen);
  }

 private:
  void check_same() const {
    Problems problems;
    const EngineDeployment& first = deployments_.front().common();
    for (std::size_t i = 1; i < deployments_.size(); ++i) {
      const EngineDeployment& other = deployments_[i].common();
      if (other.gpu.name != first.gpu.name) {
        problems.add({samples_[i].log, "gpu", other.gpu.name, first.gpu.name,
                      "calibrate each card by itself"});
      }
      if (other.launch.engine != first.launch.engine) {
        problems.add({samples_[i].log, "engine",
                      std::string(launch::to_string(other.launch.engine)),
                      std::string(launch::to_string(first.launch.engine)),
                      "calibrate each engine by itself"});
      }
    }
    problems.raise_if_any();
  }

  void take_known() {
    if (known_.gpu.empty()) {
      return;
    }
    const std::string& card = deployments_.front().common().gpu.name;
    if (known_.gpu != card) {
      throw ConfigError(Problem{known_.source, "gpu", known_.gpu, card,
                                "the logs are of another card: calibrate each card by itself"});
    }
    for (AnyDeployment& deployment : deployments_) {
      apply(known_, deployment.common());
    }
  }

  [[nodiscard]] EngineReport report_at(std::size_t sample, const Deltas& deltas) const {
    AnyDeployment shifted = deployments_[sample];
    shift(shifted.common(), deltas);
    return start(std::move(shifted)).report();
  }

  void collect() {
    const Deltas none = Deltas::Zero(kKindCount);
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      const logs::EngineRun& run = *samples_[i].run;
      const EngineReport report = report_at(i, none);
      for (const Figure figure : kFigures) {
        const logs::Reading* reading = run.nearest(figure, run.deciding_rank());
        if (reading == nullptr || !predicted_figure(report, figure)) {
          continue;
        }
        // The weights that follow from two printed figures are no third.
        if (reading->derived && figure == Figure::kWeights) {
          continue;
        }
        equations_.push_back(
            {i, figure, reading->value, 1 / std::max(reading->half_step, kMebi), reading->line});
      }
    }
    if (equations_.empty()) {
      throw ConfigError(Problem{samples_.front().log, "", "",
                                "figures that a startup predicts: weights, KV cache memory ...",
                                ""});
    }
  }

  // Predicted figures times their weights.
  [[nodiscard]] Eigen::VectorXd weighted_at(const Deltas& deltas) const {
    std::vector<EngineReport> reports;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      reports.push_back(report_at(i, deltas));
    }
    Eigen::VectorXd out(static_cast<Eigen::Index>(equations_.size()));
    for (Eigen::Index i = 0; i < out.size(); ++i) {
      const Equation& equation = equations_[static_cast<std::size_t>(i)];
      // A startup that ends before it prints the figure says nothing of it.
      const auto value = predicted_figure(reports[equation.sample], equation.figure);
      out[i] = value.value_or(equation.logged) * equation.weight;
    }
    return out;
  }

  [[nodiscard]] Eigen::VectorXd misfits_at(const Deltas& deltas) const {
    Eigen::VectorXd out = -weighted_at(deltas);
    for (Eigen::Index i = 0; i < out.size(); ++i) {
      const Equation& equation = equations_[static_cast<std::size_t>(i)];
      out[i] += equation.logged * equation.weight;
    }
    return out;
  }

  [[nodiscard]] Eigen::MatrixXd slopes_at(const Deltas& deltas) const {
    Eigen::MatrixXd out(static_cast<Eigen::Index>(equations_.size()), kKindCount);
    const Eigen::VectorXd before = weighted_at(deltas);
    for (Eigen::Index i = 0; i < kKindCount; ++i) {
      const double step = kKinds[static_cast<std::size_t>(i)].step;
      Deltas moved = deltas;
      moved[i] += step;
      out.col(i) = (weighted_at(moved) - before) / step;
    }
    return out;
  }

  // One more equation for each coefficient: that it is its preset, to within its spread. It
  // outweighs what figures say of it only where they hardly do.
  static Eigen::MatrixXd with_spreads(const Eigen::MatrixXd& slopes,
                                      const std::vector<Eigen::Index>& chosen) {
    Eigen::MatrixXd out = Eigen::MatrixXd::Zero(slopes.rows() + slopes.cols(), slopes.cols());
    out.topRows(slopes.rows()) = slopes;
    for (Eigen::Index i = 0; i < slopes.cols(); ++i) {
      out(slopes.rows() + i, i) = 1 / spread_of(chosen[static_cast<std::size_t>(i)]);
    }
    return out;
  }
  static Eigen::VectorXd with_spreads(const Eigen::VectorXd& misfits, const Deltas& deltas,
                                      const std::vector<Eigen::Index>& chosen) {
    Eigen::VectorXd out(misfits.size() + static_cast<Eigen::Index>(chosen.size()));
    out.head(misfits.size()) = misfits;
    Eigen::Index place = misfits.size();
    for (const Eigen::Index kind : chosen) {
      out[place++] = -deltas[kind] / spread_of(kind);
    }
    return out;
  }
  static double spread_of(Eigen::Index kind) {
    return kKinds[static_cast<std::size_t>(kind)].spread;
  }

  // A card has memory, and a context takes none below zero.
  void keep_positive(Deltas& deltas) const {
    const models::GpuSpec& gpu = deployments_.front().common().gpu;
    const auto keep = [&](Kind kind, Bytes preset) {
      double& delta = deltas[static_cast<Eigen::Index>(kind)];
      delta = std::max(delta, -static_cast<double>(preset.count()));
    };
    keep(Kind::kContext, gpu.context_bytes);
    keep(Kind::kTotal, gpu.device_total - kMiB);
  }

  [[nodiscard]] bool is_known(Kind kind) const {
    return (kind == Kind::kTotal && known_.device_total) ||
           (kind == Kind::kContext && known_.context);
  }

  // Columns that add what no earlier one explains.
  [[nodiscard]] std::vector<Eigen::Index> choose(const Eigen::MatrixXd& slopes) const {
    constexpr double kLittle = 0.05;  // the driver's units alone make slopes differ by less
    std::vector<Eigen::Index> chosen;
    for (Eigen::Index i = 0; i < slopes.cols(); ++i) {
      const double whole = slopes.col(i).norm();
      if (!(whole > 0) || is_known(kKinds[static_cast<std::size_t>(i)].kind) ||
          std::cmp_greater_equal(chosen.size(), slopes.rows())) {
        continue;
      }
      double rest = whole;
      if (!chosen.empty()) {
        const Eigen::MatrixXd before = slopes(Eigen::all, chosen);
        rest = (slopes.col(i) - before * before.colPivHouseholderQr().solve(slopes.col(i))).norm();
      }
      if (rest > kLittle * whole) {
        chosen.push_back(i);
      }
    }
    return chosen;
  }

  [[nodiscard]] CalibrationFit result(const Deltas& deltas, const Eigen::MatrixXd& slopes,
                                      const std::vector<Eigen::Index>& chosen) const {
    CalibrationFit out;
    AnyDeployment shifted = deployments_.front();
    const models::GpuSpec& preset = deployments_.front().common().gpu;
    shift(shifted.common(), deltas);
    const EngineDeployment& fitted = shifted.common();
    Calibration& calibration = out.calibration;
    calibration = known_;
    calibration.gpu = preset.name;
    calibration.engine = fitted.launch.engine;
    set_versions(calibration);
    const auto is_chosen = [&](Kind kind) {
      return std::find(chosen.begin(), chosen.end(), static_cast<Eigen::Index>(kind)) !=
             chosen.end();
    };
    calibration.residuals = fitted.assumed.residuals;
    if (is_chosen(Kind::kTotal)) {
      calibration.device_total = fitted.gpu.device_total;
    }
    if (is_chosen(Kind::kContext)) {
      calibration.context = fitted.gpu.context_bytes;
    }
    const Eigen::VectorXd misfits = misfits_at(deltas);
    for (Eigen::Index i = 0; i < kKindCount; ++i) {
      const KindRow& row = kKinds[static_cast<std::size_t>(i)];
      if (is_known(row.kind)) {
        continue;
      }
      Coefficient coefficient;
      coefficient.name = row.name;
      coefficient.preset = row.kind == Kind::kTotal     ? preset.device_total
                           : row.kind == Kind::kContext ? preset.context_bytes
                                                        : Bytes{0};
      coefficient.fitted = is_chosen(row.kind);
      coefficient.value = coefficient.preset + bytes_of(deltas[i]);
      add_evidence(coefficient, slopes.col(i), misfits);
      out.coefficients.push_back(std::move(coefficient));
    }
    return out;
  }

  void set_versions(Calibration& calibration) const {
    Version first = deployments_.front().common().launch.version;
    Version last = first;
    for (const AnyDeployment& deployment : deployments_) {
      first = std::min(first, deployment.common().launch.version);
      last = std::max(last, deployment.common().launch.version);
    }
    calibration.engine_version = to_string(last);
    calibration.engine_versions = {first, last};
  }

  // The figures that move with it.
  void add_evidence(Coefficient& coefficient, const Eigen::VectorXd& slopes,
                    const Eigen::VectorXd& misfits) const {
    double squares = 0;
    for (Eigen::Index i = 0; i < slopes.size(); ++i) {
      if (slopes[i] == 0) {
        continue;
      }
      const Equation& equation = equations_[static_cast<std::size_t>(i)];
      const double rest = misfits[i] / equation.weight;
      squares += rest * rest;
      ++coefficient.figures;
      coefficient.places.push_back({samples_[equation.sample].log, equation.line});
    }
    if (coefficient.figures > 0) {
      coefficient.residual =
          bytes_of(std::sqrt(squares / static_cast<double>(coefficient.figures)));
    }
  }

  const std::vector<CalibrationSample>& samples_;
  const Calibration& known_;
  std::vector<AnyDeployment> deployments_;
  std::vector<Equation> equations_;
};

}  // namespace

CalibrationFit fit_calibration(const std::vector<CalibrationSample>& samples,
                               const Calibration& known) {
  OOMCAST_CHECK(!samples.empty(), "no sample to fit");
  return Fit(samples, known).run();
}

}  // namespace oomcast
