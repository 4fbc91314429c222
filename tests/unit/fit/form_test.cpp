// Declared forms: exact recovery, arithmetic of the intervals, outliers, choice, refusal.
#include "sim/fit/form.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/fit/least_squares.hpp"

namespace oomcast::fit {
namespace {

std::vector<Observation> observe(const std::vector<double>& at, double (*value)(double)) {
  std::vector<Observation> out;
  for (const double x : at) {
    out.push_back({{x, 0}, value(x), "x=" + std::to_string(x)});
  }
  return out;
}

TEST(LeastSquares, PaperArithmetic) {
  // y = 1, 3, 2, 4 at x = 0..3: slope 0.8, intercept 1.3, squares left 1.8 over 2 degrees.
  Eigen::MatrixXd left(4, 2);
  left << 1, 0, 1, 1, 1, 2, 1, 3;
  const Eigen::VectorXd right = Eigen::Vector4d(1, 3, 2, 4);
  const auto found = least_squares(left, right);
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->values[0], 1.3, 1e-12);
  EXPECT_NEAR(found->values[1], 0.8, 1e-12);
  EXPECT_EQ(found->degrees, 2);
  // Variances 0.9 (1/4 + 1.5^2/5) and 0.9/5.
  EXPECT_NEAR(found->standard_errors[0], std::sqrt(0.9 * 0.7), 1e-12);
  EXPECT_NEAR(found->standard_errors[1], std::sqrt(0.9 / 5), 1e-12);
  // Tables of Student's t: 4.303 for 2 degrees, 1.960 for many.
  EXPECT_NEAR(interval_factor(2), 4.3027, 1e-4);
  EXPECT_NEAR(interval_factor(100'000), 1.96, 1e-3);
}

TEST(LeastSquares, WhatCannotBeToldApart) {
  Eigen::MatrixXd same(3, 2);
  same << 1, 2, 1, 2, 1, 2;
  EXPECT_FALSE(least_squares(same, Eigen::Vector3d(1, 2, 3)));
  EXPECT_FALSE(least_squares(Eigen::MatrixXd::Ones(1, 2), Eigen::VectorXd::Ones(1)));
  Eigen::MatrixXd broken = Eigen::MatrixXd::Ones(2, 1);
  broken(0, 0) = std::nan("");
  EXPECT_FALSE(least_squares(broken, Eigen::VectorXd::Ones(2)));
}

TEST(Form, ExactSamplesGiveExactCoefficients) {
  const FormFit affine = fit_form({Shape::kAffine, 1, 0},
                                  observe({1, 10, 100, 1000}, [](double x) { return 7 + 3 * x; }));
  ASSERT_EQ(affine.coefficients.size(), 2U);
  EXPECT_NEAR(affine.coefficients[0].value, 7, 1e-9);
  EXPECT_NEAR(affine.coefficients[1].value, 3, 1e-9);
  EXPECT_EQ(affine.refusal, "");

  std::vector<Observation> plane;
  for (const double x : {1.0, 5.0, 9.0}) {
    for (const double z : {0.0, 4.0}) {
      plane.push_back({{x, z}, 2 + 0.5 * x + 11 * z, ""});
    }
  }
  const FormFit two = fit_form({Shape::kTwoVariables, 1, 0}, plane);
  ASSERT_EQ(two.coefficients.size(), 3U);
  EXPECT_NEAR(two.coefficients[0].value, 2, 1e-9);
  EXPECT_NEAR(two.coefficients[1].value, 0.5, 1e-9);
  EXPECT_NEAR(two.coefficients[2].value, 11, 1e-9);
}

TEST(Form, ChoosesTheTileThatWasUsed) {
  const auto granules = [](double x) { return 2.0 * std::ceil(x / 2.0); };
  const auto observations = observe({0.1, 0.9, 1.5, 2.0, 2.1, 3.3, 7.0, 12.5}, granules);
  const FormFit fit = choose_form({{Shape::kTiles, 0.5, 0.1},
                                   {Shape::kTiles, 2, 0.1},
                                   {Shape::kTiles, 8, 0.1},
                                   {Shape::kAffine, 1, 0.1}},
                                  observations);
  EXPECT_EQ(fit.form.shape, Shape::kTiles);
  EXPECT_EQ(fit.form.tile, 2);
  EXPECT_NEAR(fit.coefficients[1].value, 2, 1e-9);
}

TEST(Form, PrefersFewerCoefficientsWhereMoreTellNothing) {
  auto observations = observe({1, 2, 3, 4, 5, 6}, [](double) { return 50.0; });
  for (std::size_t i = 0; i < observations.size(); ++i) {
    observations[i].value += i % 2 == 0 ? 0.01 : -0.01;
  }
  EXPECT_EQ(
      choose_form({{Shape::kAffine, 1, 0}, {Shape::kConstant, 1, 0}}, observations).form.shape,
      Shape::kConstant);
}

TEST(Form, OneOutlierIsNamedAndChangesNothing) {
  auto observations =
      observe({1, 2, 3, 4, 5, 6, 7, 8}, [](double x) { return 100 + 10 * x + std::sin(x) / 10; });
  const FormFit clean = fit_form({Shape::kAffine, 1, 0}, observations);
  observations[4].value *= 3;
  const FormFit fit = fit_form({Shape::kAffine, 1, 0}, observations);
  EXPECT_EQ(fit.refusal, "");
  EXPECT_EQ(fit.outliers(), 1);
  EXPECT_TRUE(fit.residuals[4].outlier);
  EXPECT_NEAR(fit.coefficients[1].value, clean.coefficients[1].value, 0.05);
  EXPECT_NE(residual_table(fit).find('o'), std::string::npos);
}

TEST(Form, RefusesWhatItDoesNotFit) {
  const FormFit square = fit_form({Shape::kAffine, 1, 0},
                                  observe({1, 2, 4, 8, 16, 32}, [](double x) { return x * x; }));
  EXPECT_NE(square.refusal, "");
  EXPECT_NE(residual_table(square).find('*'), std::string::npos);
  const FormFit few = fit_form({Shape::kAffine, 1, 0}, observe({3, 3}, [](double x) { return x; }));
  EXPECT_NE(few.refusal.find("apart"), std::string::npos);
  EXPECT_TRUE(few.coefficients.empty());
  EXPECT_NE(fit_form({Shape::kConstant, 1, 0}, {}).refusal, "");
}

TEST(Form, ErrorsBelowTheFloorCountAsOfTheFloor) {
  // A counter that moves by 2 around zero: no constant but for its floor.
  const std::vector<Observation> counter = {{{}, 0, ""}, {{}, 2, ""}, {{}, 0, ""}, {{}, 0, ""}};
  EXPECT_NE(fit_form({Shape::kConstant, 1, 0}, counter).refusal, "");
  EXPECT_EQ(fit_form({Shape::kConstant, 1, 20}, counter).refusal, "");
}

}  // namespace
}  // namespace oomcast::fit
