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

// Spec describes a job. All fields except Ranks and Command are optional.
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
	MasterPort int    // MASTER_PORT, by default a free port
	RunID      string // name of the job, by default random
	// Grace is the time in which other ranks can report the first failure before they get SIGTERM, by
	// default 10 s. Negative means none.
	Grace time.Duration
	// TermWait is the time from SIGTERM to SIGKILL, by default 5 s. Negative means none.
	TermWait time.Duration
	// KillDelay is the time from a SIGTERM to the launcher until SIGKILL, by default 10 s. Negative
	// means no SIGKILL.
	KillDelay time.Duration
	// Signals delivers the signals to forward, by default this process's SIGINT, SIGTERM, SIGHUP and
	// SIGQUIT.
	Signals <-chan os.Signal

	lineDelay time.Duration // for tests; 0 selects unterminatedDelay
}

const (
	maxRanks         = 4096
	defaultGrace     = 10 * time.Second
	defaultTermWait  = 5 * time.Second
	defaultKillDelay = 10 * time.Second
)

// Errors for an invalid Spec.
var (
	ErrRankCount = errors.New("the number of ranks must be from 1 to 4096")
	ErrNoCommand = errors.New("no command to start")
)

func (s *Spec) validate() (path string, err error) {
	if s.Ranks < 1 || s.Ranks > maxRanks {
		return "", fmt.Errorf("%w, not %d", ErrRankCount, s.Ranks)
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		return "", ErrNoCommand
	}
	if path, err = exec.LookPath(s.Command[0]); err != nil {
		return "", fmt.Errorf("finding the command: %w", err)
	}
	if s.MasterPort, err = choosePort(s.MasterPort); err != nil {
		return "", err
	}
	s.setDefaults()
	return path, nil
}

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
	return l.Addr().(*net.TCPAddr).Port, nil
}
