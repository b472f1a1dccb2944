package chaos

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"symmem"
	"symmem/internal/launch"
	"symmem/internal/rendezvous"
)

// These environment variables hold a rank's role, its task as JSON, and the ID of the job.
const (
	roleVariable = "SYMMEM_CHAOS_ROLE"
	taskVariable = "SYMMEM_CHAOS_TASK"
	jobVariable  = "SYMMEM_CHAOS_JOB"
)

// roles maps each role to a rank's main function, which returns an error only if it could not run
// the task. Failures of symmem are written to standard output.
var roles = map[string]func(task []byte) error{
	"page":     pageRankMain,
	"programs": programsRankMain,
	"remap":    remapRankMain,
	"signals":  signalsRankMain,
}

func runRole(role string) int {
	err := restartOnMachine()
	if err == nil {
		err = roles[role]([]byte(os.Getenv(taskVariable)))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "rank %s: %v\n", os.Getenv("RANK"), err)
		return 1
	}
	return 0
}

type job struct {
	role  string
	ranks int
	task  any
	// After timeLimit, the job counts as hung, and its ranks print the stacks of their goroutines.
	timeLimit time.Duration
	// machines is the number of pretended machines, or 0 for the real one.
	machines  int
	variables []string
	// onLine is called for each line of standard output. Calls do not overlap.
	onLine func(line string)
	// id identifies the job in its processes' environment and in the name of its store.
	id string
	// folder is for the ranks' temporary files; "" means the default.
	folder string
}

var errHang = errors.New("program hangs")

func (j *job) environment() ([]string, error) {
	task, err := json.Marshal(j.task)
	if err != nil {
		return nil, err
	}
	env := os.Environ()
	if os.Getenv("GORACE") == "" {
		// By default, the race detector delays each exit by one second.
		env = append(env, "GORACE=atexit_sleep_ms=10")
	}
	env = append(env, j.variables...)
	env = append(env, fmt.Sprintf("%s=%d", machinesVariable, j.machines))
	if j.folder != "" {
		env = append(env, "TMPDIR="+j.folder)
	}
	return append(env, "GOTRACEBACK=all", roleVariable+"="+j.role,
		taskVariable+"="+string(task), jobVariable+"="+j.id), nil
}

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
	result, err := launch.Run(ctx, launch.Spec{
		Ranks: j.ranks, Command: []string{os.Args[0]}, Env: env, OmitPrefix: true,
		Stdout: lineWriter(j.onLine), Stderr: stderr, Signals: signals, Grace: j.timeLimit,
	})
	close(ended)
	watch.Wait()
	switch {
	case hung:
		return result, fmt.Errorf("%w: still running after %v\n%s", errHang, j.timeLimit, stderr)
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

// ignoreLauncher returns options for a rank without a launcher: rank 0 serves the store, and the
// ranks must detect exits themselves.
func ignoreLauncher(o symmem.Options) (_ symmem.Options, err error) {
	if o.Rank, err = strconv.Atoi(os.Getenv("RANK")); err != nil {
		return o, err
	}
	if o.Size, err = strconv.Atoi(os.Getenv("WORLD_SIZE")); err != nil {
		return o, err
	}
	o.Store = "unix:@" + storeSocket(os.Getenv(jobVariable))
	return o, errors.Join(os.Unsetenv(rendezvous.EnvStore), os.Unsetenv(rendezvous.EnvToken))
}

func storeSocket(job string) string { return "symmem-chaos-" + job }

const dumpTime = 5 * time.Second

// watch makes the ranks of a hanging job print their stacks, and then kills them.
func (j *job) watch(ended chan struct{}, signals chan<- os.Signal, kill func()) (hung bool) {
	select {
	case <-ended:
		return false
	case <-time.After(j.timeLimit):
	}
	signals <- syscall.SIGQUIT
	select {
	case <-ended:
	case <-time.After(dumpTime):
		kill()
	}
	return true
}

// stateTime bounds the time from a stop signal until the process has stopped.
const stateTime = 30 * time.Second

func awaitStopped(pid int) error {
	for deadline := time.Now().Add(stateTime); time.Now().Before(deadline); {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		// The state follows the command name, which is in parentheses.
		if _, state, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(state, "T") {
			return nil
		}
		<-time.After(time.Millisecond)
	}
	return fmt.Errorf("process %d has not stopped within %v", pid, stateTime)
}

// lineWriter calls the function with each line. It relies on the launcher to write whole lines.
type lineWriter func(line string)

func (fn lineWriter) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		fn(strings.TrimSuffix(line, "\n"))
	}
	return len(text), nil
}
