#include "sim/cli/command.hpp"

int main(int argc, char** argv) { return oomcast::cli::run_program(argc, argv); }
