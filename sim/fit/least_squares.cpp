#include "sim/fit/least_squares.hpp"

#include <Eigen/QR>
#include <boost/math/distributions/students_t.hpp>

namespace oomcast::fit {

std::optional<Solution> least_squares(const Eigen::MatrixXd& left, const Eigen::VectorXd& right) {
  if (left.cols() == 0 || left.rows() < left.cols() || !left.allFinite() || !right.allFinite()) {
    return std::nullopt;
  }
  const Eigen::ColPivHouseholderQR<Eigen::MatrixXd> qr(left);
  if (qr.rank() < left.cols()) {
    return std::nullopt;
  }
  Solution out;
  out.values = qr.solve(right);
  out.residuals = right - left * out.values;
  out.degrees = left.rows() - left.cols();
  out.standard_errors = Eigen::VectorXd::Zero(left.cols());
  if (out.degrees > 0) {
    // left = Q R P': the inverse of left' left is P (R' R)^-1 P'.
    const Eigen::MatrixXd upper = qr.matrixR().topRows(left.cols()).triangularView<Eigen::Upper>();
    const Eigen::MatrixXd inverse = upper.triangularView<Eigen::Upper>().solve(
        Eigen::MatrixXd::Identity(left.cols(), left.cols()));
    const double variance = out.residuals.squaredNorm() / static_cast<double>(out.degrees);
    const Eigen::VectorXd errors = (inverse.rowwise().squaredNorm() * variance).cwiseSqrt();
    out.standard_errors = qr.colsPermutation() * errors;
  }
  if (!out.values.allFinite() || !out.standard_errors.allFinite()) {
    return std::nullopt;
  }
  return out;
}

double interval_factor(std::int64_t degrees) {
  constexpr double kUpperTail = 0.975;
  return boost::math::quantile(
      boost::math::students_t_distribution<double>(static_cast<double>(degrees)), kUpperTail);
}

}  // namespace oomcast::fit
