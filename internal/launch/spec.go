package launch

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"
)

// Spec describes a job, whose processes are called ranks. For example, this job runs the program
// twice, with the environment variable RANK=0 and with RANK=1:
//
//	Spec{Ranks: 2, Command: []string{"python", "train.py"}}
//
// The other fields are optional.
type Spec struct {
	Ranks   int      // number of processes to start, from 1 to 4096
	Command []string // program, which is looked up in PATH, and its arguments
	// Env is the base of the ranks' environment, by default this process's environment.
	Env []string
	// Stdin is rank 0's standard input, by default empty. A goroutine leaks if a read from Stdin
	// blocks forever.
	Stdin io.Reader
	// Stdout and Stderr receive the ranks' output. Writes are never concurrent, and contain complete
	// lines unless a line stays unterminated for 100 ms.
	Stdout, Stderr io.Writer
	// OmitPrefix omits the prefix "[rank] " of output lines.
	OmitPrefix bool
	MasterPort int    // value of MASTER_PORT for the ranks, by default a free port
	RunID      string // name of the job, by default random
	// Grace is the time from the first failure of a rank to SIGTERM for the others, by default
	// 10 s. In this time, they can report the failure. Negative means none.
	Grace time.Duration
	// TermWait is the time from this SIGTERM to SIGKILL, by default 5 s. Negative means none.
	TermWait time.Duration
	// KillDelay is the time from a SIGTERM that the launcher has received to SIGKILL for the ranks, by
	// default 10 s. Negative means no SIGKILL.
	KillDelay time.Duration
	// Signals delivers the signals to forward to the ranks. By default, these are the SIGINT, SIGTERM,
	// SIGHUP and SIGQUIT that this process receives.
	Signals <-chan os.Signal

	lineDelay time.Duration // for tests; 0 selects unterminatedDelay
}

const (
	maxRanks         = 4096             // more processes would hardly fit on one machine
	defaultGrace     = 10 * time.Second // for Grace
	defaultTermWait  = 5 * time.Second  // for TermWait
	defaultKillDelay = 10 * time.Second // for KillDelay
)

// Errors for an invalid Spec.
var (
	ErrRankCount = errors.New("the number of ranks must be from 1 to 4096")
	ErrNoCommand = errors.New("no command to start")
)

// complete checks s and sets the defaults of its fields. It returns the path of the program.
func (s *Spec) complete() (path string, err error) {
	if s.Ranks < 1 || s.Ranks > maxRanks {
		return "", fmt.Errorf("%w, not %d", ErrRankCount, s.Ranks)
	}

	if len(s.Command) == 0 || s.Command[0] == "" {
		return "", ErrNoCommand
	}

	path, err = exec.LookPath(s.Command[0])
	if err != nil {
		return "", fmt.Errorf("finding the command: %w", err)
	}

	s.MasterPort, err = choosePort(s.MasterPort)
	if err != nil {
		return "", err
	}

	s.setDefaults()
	return path, nil
}

// setDefaults sets the defaults of fields that are zero, except MasterPort, RunID and Signals.
func (s *Spec) setDefaults() {
	if s.Env == nil {
		s.Env = os.Environ()
	}

	if s.Stdout == nil {
		s.Stdout = os.Stdout
	}

	if s.Stderr == nil {
		s.Stderr = os.Stderr
	}

	s.Grace = cmp.Or(s.Grace, defaultGrace)
	s.TermWait = cmp.Or(s.TermWait, defaultTermWait)
	s.KillDelay = cmp.Or(s.KillDelay, defaultKillDelay)
}

// choosePort returns port or, if port is 0, a free port. Another process may open that port first.
func choosePort(port int) (int, error) {
	if port < 0 || port > 65535 {
		return 0, fmt.Errorf("%d is not a port number", port)
	}

	if port != 0 {
		return port, nil
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("picking a port: %w", err)
	}
	defer l.Close()
	address := l.Addr().(*net.TCPAddr) // Listeners of "tcp" have such an address.
	return address.Port, nil
}
