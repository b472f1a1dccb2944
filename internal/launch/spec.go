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

// Spec says what to start. The zero value of every field but Ranks and Command is useful.
type Spec struct {
	// Ranks is how many processes to start, from 1 to 4096.
	Ranks int
	// Command is the program, looked up in PATH, and its arguments.
	Command []string
	// Env is the environment that the variables of the ranks are added to; nil means ours.
	Env []string
	// Stdin is what rank 0 reads; nil, and all other ranks, read an empty file. A reader that
	// blocks after the ranks have ended keeps one goroutine.
	Stdin io.Reader
	// Stdout and Stderr take the output of the ranks, one Write a line or more, never two at
	// the same time; nil means our own. The start of a line is written without its end if that
	// takes longer than 100 ms; a line of another rank goes on a line of its own all the same.
	Stdout, Stderr io.Writer
	// Plain passes lines on as they are. Without it, "[rank] " is put before each.
	Plain bool
	// MasterPort is the value of MASTER_PORT; 0 picks a port that is free at the moment.
	MasterPort int
	// RunID names the job; empty picks a random name.
	RunID string
	// Grace is how long the other ranks may go on after one has failed, so that they can find
	// out and report which was lost. 0 means 10 s; less than 0 means no time.
	Grace time.Duration
	// TermWait is the time between SIGTERM and SIGKILL. 0 means 5 s; less than 0 no time.
	TermWait time.Duration
	// KillAfter is the time from a SIGTERM that came from outside and was passed on to SIGKILL for
	// the ranks that have not ended. 0 means 10 s; less than 0 means that they are waited for.
	KillAfter time.Duration
	// Signals are passed on to all ranks; nil means that Run takes SIGINT, SIGTERM, SIGHUP and
	// SIGQUIT of this process while it runs.
	Signals <-chan os.Signal
}

const (
	maxRanks        = 4096
	defaultGrace    = 10 * time.Second
	defaultTermWait = 5 * time.Second
	defaultKill     = 10 * time.Second
)

// Errors of a Spec, found before anything starts.
var (
	// ErrRanks is a number of ranks that cannot be.
	ErrRanks = errors.New("the number of ranks must be from 1 to 4096")
	// ErrNoCommand is a Spec without a program.
	ErrNoCommand = errors.New("no command to start")
)

// prepare checks a Spec and fills in the defaults. It returns the path of the program.
func (s *Spec) prepare() (path string, err error) {
	if s.Ranks < 1 || s.Ranks > maxRanks {
		return "", fmt.Errorf("%w, not %d", ErrRanks, s.Ranks)
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		return "", ErrNoCommand
	}
	if path, err = exec.LookPath(s.Command[0]); err != nil {
		return "", fmt.Errorf("finding the command: %w", err)
	}
	if s.MasterPort, err = port(s.MasterPort); err != nil {
		return "", err
	}
	s.fill()
	return path, nil
}

func (s *Spec) fill() {
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
	s.KillAfter = cmp.Or(s.KillAfter, defaultKill)
}

// port picks a free port unless one is wanted. Another process may take it before a rank does;
// there is no way to hold it for a program that opens it by itself.
func port(want int) (int, error) {
	if want < 0 || want > 65535 {
		return 0, fmt.Errorf("%d is not a port", want)
	}
	if want != 0 {
		return want, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("picking a port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
