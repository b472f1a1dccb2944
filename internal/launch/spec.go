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

// Spec describes a job, which runs a program in several processes, called ranks. This job runs it
// twice, with RANK=0 and RANK=1 in the environment:
//
//	Spec{Ranks: 2, Command: []string{"python", "train.py"}}
//
// The other fields are optional.
type Spec struct {
	Ranks   int       // from 1 to 4096
	Command []string  // program, looked up in PATH, and arguments
	Env     []string  // base environment of the ranks, by default os.Environ()
	Stdin   io.Reader // input of rank 0, by default empty; a read that never returns leaks a goroutine
	// Stdout and Stderr receive the output of the ranks. Writes are never concurrent, and contain
	// complete lines unless a line stays unterminated for 100 ms.
	Stdout, Stderr io.Writer
	OmitPrefix     bool   // omits the prefix of output lines, such as "[3] "
	MasterPort     int    // MASTER_PORT of the ranks, by default a free port
	RunID          string // name of the job, by default random
	// Grace is the time from the first failure to SIGTERM for the other ranks, which can report the
	// failure meanwhile. The default is 10 s; negative means none.
	Grace time.Duration
	// TermWait is the time from that SIGTERM to SIGKILL. The default is 5 s; negative means none.
	TermWait time.Duration
	// KillDelay is the time from a SIGTERM for the launcher to SIGKILL for the ranks. The default is
	// 10 s; negative means no SIGKILL.
	KillDelay time.Duration
	// Signals delivers signals to forward to the ranks, by default the SIGINT, SIGTERM, SIGHUP and
	// SIGQUIT that this process receives.
	Signals <-chan os.Signal

	lineDelay time.Duration // for tests; 0 selects unterminatedDelay
}

const (
	maxRanks         = 4096 // more processes would hardly fit on one machine
	defaultGrace     = 10 * time.Second
	defaultTermWait  = 5 * time.Second
	defaultKillDelay = 10 * time.Second
)

// Errors for an invalid Spec.
var (
	ErrRankCount = errors.New("the number of ranks must be from 1 to 4096")
	ErrNoCommand = errors.New("no command to start")
)

// complete checks s, sets defaults and returns the path of the program.
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

// setDefaults leaves RunID and Signals to Run, and MasterPort to choosePort.
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

// choosePort replaces port 0 with a free port, which another process may still take.
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
