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

// Spec describes a job, which runs a program in several processes, called ranks. The following job
// has two ranks, with RANK=0 and RANK=1 in their environments:
//
//	Spec{Ranks: 2, Command: []string{"python", "train.py"}}
//
// The other fields are optional.
type Spec struct {
	Ranks   int      // number of ranks, from 1 to 4096
	Command []string // program, looked up in PATH, and arguments
	Env     []string // base environment of the ranks, by default os.Environ()
	// Stdin is the input of rank 0, by default empty. A read that never returns leaks a goroutine.
	Stdin io.Reader
	// Stdout and Stderr receive the output of the ranks. Writes are never concurrent. They contain
	// complete lines, except for lines without a newline for 100 ms, such as prompts.
	Stdout, Stderr io.Writer
	OmitPrefix     bool   // omits the prefix of output lines, such as "[3] "
	MasterPort     int    // MASTER_PORT of the ranks, by default a free port
	RunID          string // name of the job, by default random
	// Grace is the time from the first failure of a rank to SIGTERM for the other ranks, so that they
	// can report the failure. The default is 10 s. A negative Grace sends SIGTERM immediately.
	Grace time.Duration
	// TermWait is the time from SIGTERM after Grace to SIGKILL. The default is 5 s. A negative
	// TermWait sends SIGKILL instead of SIGTERM.
	TermWait time.Duration
	// KillDelay is the time from a SIGTERM that the launcher receives to SIGKILL for the ranks. The
	// default is 10 s. A negative KillDelay disables SIGKILL.
	KillDelay time.Duration
	// Signals delivers signals to forward to the ranks, by default the SIGINT, SIGTERM, SIGHUP and
	// SIGQUIT that this process receives.
	Signals <-chan os.Signal

	lineDelay time.Duration // replaces unterminatedDelay in tests, unless 0
}

const (
	maxRanks         = 4096 // arbitrary, but more than one machine can usefully run
	maxPort          = 1<<16 - 1
	defaultGrace     = 10 * time.Second
	defaultTermWait  = 5 * time.Second
	defaultKillDelay = 10 * time.Second
)

// Errors for an invalid Spec.
var (
	ErrRankCount = errors.New("the number of ranks must be from 1 to 4096")
	ErrNoCommand = errors.New("no command to start")
)

// complete checks s and returns the path of the program. It sets defaults, except those of RunID
// and Signals.
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

// choosePort returns port or, for port 0, a port that is free at present.
func choosePort(port int) (int, error) {
	if port < 0 || port > maxPort {
		return 0, fmt.Errorf("%d is not a port number", port)
	}

	if port != 0 {
		return port, nil
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("picking a port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
