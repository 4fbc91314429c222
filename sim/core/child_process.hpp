// Another program, run beside this one with pipes to it.
#pragma once

#include <sys/types.h>

#include <array>
#include <string>
#include <vector>

namespace oomcast {

// Two ends of a pipe, which other programs do not inherit; -1 once closed.
class Pipe {
 public:
  Pipe();  // throws std::system_error
  ~Pipe();
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] int reading() const { return ends_[0]; }
  [[nodiscard]] int writing() const { return ends_[1]; }
  void close_reading() { close_end(0); }
  void close_writing() { close_end(1); }

 private:
  void close_end(std::size_t end);
  std::array<int, 2> ends_{-1, -1};
};

struct ChildOptions {
  std::string program;                        // a path, or a name that PATH knows
  std::vector<std::string> words;             // its arguments, its own name first
  std::vector<std::string> environment = {};  // "NAME=value", before this process's own
  bool pipe_errors = false;                   // else its standard error is this process's
};

// Killed if it still runs when this goes.
class ChildProcess {
 public:
  explicit ChildProcess(const ChildOptions& options);  // throws std::system_error
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] int input() const { return in_.writing(); }  // to write to
  [[nodiscard]] int output() const { return out_.reading(); }
  [[nodiscard]] int errors() const { return err_.reading(); }
  void ask_to_end() const;
  // Waits for its end; the status as waitpid() gives it.
  int wait();

 private:
  Pipe in_;
  Pipe out_;
  Pipe err_;
  pid_t pid_ = -1;
};

}  // namespace oomcast
