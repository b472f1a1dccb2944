package chaos

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"symmem/internal/launch"
)

// Variables by which a test tells a process that it is a rank, what of, and, without the launcher,
// which one.
const (
	roleVariable  = "SYMMEM_CHAOS_ROLE"
	taskVariable  = "SYMMEM_CHAOS_TASK"
	placeVariable = "SYMMEM_CHAOS_PLACE"
	jobVariable   = "SYMMEM_CHAOS_JOB"
)

// roles are what a rank can be. Each gets its task as JSON, and an error is that of a program that
// could not be run: what symmem got wrong is in what the rank writes.
var roles = map[string]func(task []byte) error{
	"erring":     erringRank,
	"graphs":     graphsRank,
	"recoveries": recoveriesRank,
	"kills":      killsRank,
	"messages":   messagesRank,
	"page":       pageRankMain,
	"stops":      stopsRank,
	"uneven":     unevenRank,
}

// beRank is the main function of a rank.
func beRank(role string) int {
	if err := roles[role]([]byte(os.Getenv(taskVariable))); err != nil {
		fmt.Fprintf(os.Stderr, "rank %s: %v\n", os.Getenv("RANK"), err)
		return 1
	}
	return 0
}

// job is the ranks of a program.
type job struct {
	role  string
	ranks int
	task  any
	// limit is how long the program may take. It is a hang then, and the ranks write where their
	// goroutines are.
	limit time.Duration
	// variables are added to the environment of the ranks.
	variables []string
	// hear is given every line that ranks write to standard output, one at a time.
	hear func(line string)
	// bare has the ranks started without the launcher, with a store that rank 0 serves.
	bare bool
	// id is in the environment of all processes of the job, and in the name of the store that rank
	// 0 serves.
	id string
	// folder is where the ranks have their temporary files, if not where all have them.
	folder string
}

// errHang is a program that did not end.
var errHang = errors.New("a hang")

// environment is that of the ranks.
func (j *job) environment() ([]string, error) {
	task, err := json.Marshal(j.task)
	if err != nil {
		return nil, err
	}
	env := os.Environ()
	if os.Getenv("GORACE") == "" {
		// The race detector would have each process wait for a second at its end.
		env = append(env, "GORACE=atexit_sleep_ms=10")
	}
	env = append(env, j.variables...)
	if j.folder != "" {
		env = append(env, "TMPDIR="+j.folder)
	}
	return append(env, "GOTRACEBACK=all", roleVariable+"="+j.role,
		taskVariable+"="+string(task), jobVariable+"="+j.id), nil
}

// run starts the ranks and waits for their ends.
func (j *job) run(ctx context.Context) (launch.Result, error) {
	j.id = rand.Text()
	env, err := j.environment()
	if err != nil {
		return launch.Result{}, err
	}
	signals, ended := make(chan os.Signal, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watch sync.WaitGroup
	var hung bool
	watch.Go(func() { hung = j.watch(ended, signals, cancel) })
	stderr := &bytes.Buffer{}
	start := launch.Run
	if j.bare {
		start = j.runBare
	}
	result, err := start(ctx, launch.Spec{
		Ranks: j.ranks, Command: []string{os.Args[0]}, Env: env, Plain: true,
		Stdout: hearing(j.hear), Stderr: stderr, Signals: signals, Grace: j.limit,
	})
	close(ended)
	watch.Wait()
	switch {
	case hung:
		return result, fmt.Errorf("%w: not done after %v\n%s", errHang, j.limit, stderr)
	case err != nil:
		return result, err
	}
	for _, e := range result.Exits {
		if e.Code != 0 && e.Signal != syscall.SIGKILL {
			return result, fmt.Errorf("%v\n%s", e, stderr)
		}
	}
	return result, nil
}

// dumpTime is how long ranks have to write where their goroutines are.
const dumpTime = 5 * time.Second

// watch waits for the end of a job, and ends one that hangs.
func (j *job) watch(ended chan struct{}, signals chan<- os.Signal, kill func()) (hung bool) {
	select {
	case <-ended:
		return false
	case <-time.After(j.limit):
	}
	signals <- syscall.SIGQUIT
	select {
	case <-ended:
	case <-time.After(dumpTime):
		kill()
	}
	return true
}

// stateTime is how long a process has to get a signal.
const stateTime = 30 * time.Second

// awaitStopped waits until the state of a process is that of one that a signal has stopped.
func awaitStopped(pid int) error {
	for deadline := time.Now().Add(stateTime); time.Now().Before(deadline); {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		// The state is the field behind the name, which is in parentheses.
		if _, state, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(state, "T") {
			return nil
		}
		<-time.After(time.Millisecond)
	}
	return fmt.Errorf("process %d has not stopped within %v", pid, stateTime)
}

// hearing passes lines on. The launcher writes whole ones, one Write at a time.
type hearing func(line string)

func (h hearing) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		h(strings.TrimSuffix(line, "\n"))
	}
	return len(text), nil
}
