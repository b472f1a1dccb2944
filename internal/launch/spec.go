package launch

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"symmem/internal/rendezvous"
)

// Spec describes a job, which runs a program in several processes, called ranks. The following job
// has two ranks, with RANK=0 and RANK=1 in their environments:
//
//	Spec{Ranks: 2, Command: []string{"python", "train.py"}}
//
// Ranks and Command are required.
type Spec struct {
	Ranks   int       // from 1 to 4096
	Command []string  // program, looked up in PATH, and arguments
	Env     []string  // base environment of the ranks, by default os.Environ()
	Stdin   io.Reader // input of rank 0, by default empty
	// Stdout and Stderr receive the output of the ranks. The defaults are os.Stdout and os.Stderr.
	// Writes are never concurrent. They contain complete lines, unless a line, such as a prompt,
	// lacks its newline for 100 ms.
	Stdout, Stderr io.Writer
	OmitPrefix     bool   // omits the prefix of output lines, such as "[3] "
	MasterPort     int    // MASTER_PORT of the ranks, by default a free port
	RunID          string // name of the job, by default random

	// After the first failure of a rank, the others have Grace (by default 10 s) to report it. Then
	// they get SIGTERM and, after TermWait (by default 5 s), SIGKILL. A negative Grace skips the wait,
	// and a negative TermWait skips SIGTERM.
	Grace, TermWait time.Duration
	// The ranks get SIGKILL when KillDelay (by default 10 s) has passed since the launcher received
	// SIGTERM. A negative KillDelay disables SIGKILL.
	KillDelay time.Duration
	// Signals delivers signals to forward to the ranks, by default the SIGINT, SIGTERM, SIGHUP and
	// SIGQUIT that this process receives.
	Signals <-chan os.Signal

	lineDelay time.Duration // until an incomplete line is written; set only by tests
}

const (
	maxRanks         = 4096 // arbitrary; enough for any machine
	maxPort          = 1<<16 - 1
	defaultGrace     = 10 * time.Second
	defaultTermWait  = 5 * time.Second
	defaultKillDelay = 10 * time.Second
	defaultLineDelay = 100 * time.Millisecond
)

// Result describes how a job ended.
type Result struct {
	Code        int    `json:"code"`         // exit code of the first rank that failed, or 0
	FirstFailed int    `json:"first_failed"` // rank, or -1
	Exits       []Exit `json:"ranks"`
	// Signal is the first signal that the launcher received, or 0. SIGPIPE means that the reader of
	// its output is gone.
	Signal syscall.Signal `json:"-"`
}

// Errors for an invalid Spec.
var (
	ErrRankCount = errors.New("the number of ranks must be from 1 to 4096")
	ErrNoCommand = errors.New("no command to start")
)

// complete checks s, sets defaults except for Signals, and returns the path of the program.
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

	if s.RunID == "" {
		s.RunID = rand.Text()
	}

	s.Grace = cmp.Or(s.Grace, defaultGrace)
	s.TermWait = cmp.Or(s.TermWait, defaultTermWait)
	s.KillDelay = cmp.Or(s.KillDelay, defaultKillDelay)
	s.lineDelay = cmp.Or(s.lineDelay, defaultLineDelay)
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

// environ returns s.Env with the rank's variables. They replace those that an outer launcher has
// set, such as torchrun.
func (s *Spec) environ(rank int, store rendezvous.Endpoint) []string {
	rankVariables := s.variables(rank, store)
	isRemoved := func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, isReplaced := rankVariables[name]
		return isReplaced || name == "TORCHELASTIC_ERROR_FILE" // a file of an outer torchrun
	}
	env := slices.DeleteFunc(slices.Clone(s.Env), isRemoved)
	// Without OMP_NUM_THREADS, OpenMP would start a thread per core in each rank.
	setsThreads := func(entry string) bool { return strings.HasPrefix(entry, "OMP_NUM_THREADS=") }
	if s.Ranks > 1 && !slices.ContainsFunc(env, setsThreads) {
		env = append(env, "OMP_NUM_THREADS=1")
	}

	for name, value := range rankVariables {
		env = append(env, name+"="+value)
	}

	slices.Sort(env)
	return env
}

// variables returns the variables of torchrun, and those of the launcher's store. PyTorch cannot
// use this store: TORCHELASTIC_USE_AGENT_STORE=False makes rank 0 open a PyTorch store on
// MASTER_PORT.
func (s *Spec) variables(rank int, store rendezvous.Endpoint) map[string]string {
	size := strconv.Itoa(s.Ranks)
	return map[string]string{
		"RANK":                         strconv.Itoa(rank),
		"LOCAL_RANK":                   strconv.Itoa(rank),
		"ROLE_RANK":                    strconv.Itoa(rank),
		"WORLD_SIZE":                   size,
		"LOCAL_WORLD_SIZE":             size,
		"ROLE_WORLD_SIZE":              size,
		"ROLE_NAME":                    "default",
		"GROUP_RANK":                   "0",
		"GROUP_WORLD_SIZE":             "1",
		"MASTER_ADDR":                  "127.0.0.1",
		"MASTER_PORT":                  strconv.Itoa(s.MasterPort),
		"TORCHELASTIC_RUN_ID":          s.RunID,
		"TORCHELASTIC_RESTART_COUNT":   "0",
		"TORCHELASTIC_MAX_RESTARTS":    "0",
		"TORCHELASTIC_USE_AGENT_STORE": "False",
		rendezvous.EnvStore:            store.Address,
		rendezvous.EnvToken:            string(store.Token),
	}
}
