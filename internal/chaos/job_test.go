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

// A job consists of processes of this test program, the ranks, that a test starts. A rank's role
// selects what it does, and the task holds the arguments.

// roles maps each role to the main function of its ranks. The function writes failures of symmem
// to standard output. It returns an error only if it could not perform the task.
var roles = map[string]func(task []byte) error{
	"page":     pageRankMain,
	"programs": programsRankMain,
	"remap":    remapRankMain,
	"signals":  signalsRankMain,
}

// runRole runs this process as a rank and returns its exit code.
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

// job describes processes of this program that a test starts as ranks.
type job struct {
	role  string // see roles
	ranks int
	task  any // passed to the role's function as JSON
	// timeLimit is the time after which the job is considered to hang. Its ranks then print the
	// stacks of their goroutines.
	timeLimit time.Duration
	// machines is the number of pretended machines, or 0 for the real one.
	machines  int
	variables []string // additional environment variables, as NAME=value
	// onLine is called for each line of standard output. Calls do not overlap.
	onLine func(line string)
	// id identifies the job in the environment of its processes and in the name of its store. It is
	// set by run.
	id string
	// folder is the folder for temporary files of the ranks, or "" for the default.
	folder string
}

var errHang = errors.New("program hangs")

// environment returns the environment variables of the ranks, as NAME=value.
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

	return append(env,
		"GOTRACEBACK=all", // a hanging rank prints the stacks of all goroutines
		roleVariable+"="+j.role,
		taskVariable+"="+string(task),
		jobVariable+"="+j.id,
	), nil
}

// run runs the job until all ranks have exited. It returns an error if the job hangs, or if a rank
// fails and has not been killed with SIGKILL.
func (j *job) run(ctx context.Context) (launch.Result, error) {
	j.id = rand.Text()
	env, err := j.environment()
	if err != nil {
		return launch.Result{}, err
	}

	signals := make(chan os.Signal, 1) // signals for all ranks
	ended := make(chan struct{})       // closed when all ranks have exited
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watcher sync.WaitGroup
	var isHung bool // read after the watcher has ended
	watcher.Go(func() { isHung = j.watch(ended, signals, cancel) })
	stderr := &bytes.Buffer{}
	result, err := launch.Run(ctx, launch.Spec{
		Ranks: j.ranks, Command: []string{os.Args[0]}, Env: env, OmitPrefix: true,
		Stdout: lineWriter(j.onLine), Stderr: stderr, Signals: signals, Grace: j.timeLimit,
	})
	close(ended)
	watcher.Wait()
	switch {
	case isHung:
		return result, fmt.Errorf("%w: still running after %v\n%s", errHang, j.timeLimit, stderr)
	case err != nil:
		return result, err
	}

	for _, exit := range result.Exits {
		if exit.Code != 0 && exit.Signal != syscall.SIGKILL {
			return result, fmt.Errorf("%v\n%s", exit, stderr)
		}
	}

	return result, nil
}

// ignoreLauncher changes the options and the environment of a rank as if no launcher had started
// it: rank 0 serves the store, and the ranks must themselves detect that a process has exited.
func ignoreLauncher(o symmem.Options) (_ symmem.Options, err error) {
	if o.Rank, err = strconv.Atoi(os.Getenv("RANK")); err != nil {
		return o, err
	}

	if o.Size, err = strconv.Atoi(os.Getenv("WORLD_SIZE")); err != nil {
		return o, err
	}

	o.Store = "unix:@" + storeSocket(os.Getenv(jobVariable)) // @ stands for a socket without a file
	for _, name := range []string{rendezvous.EnvStore, rendezvous.EnvToken} {
		if err := os.Unsetenv(name); err != nil {
			return o, err
		}
	}

	return o, nil
}

// storeSocket returns the name of a job's store socket.
func storeSocket(job string) string { return "symmem-chaos-" + job }

// dumpTime is the time in which the ranks of a hanging job can print their stacks.
const dumpTime = 5 * time.Second

// watch waits until ended is closed. If this takes longer than timeLimit, it makes the ranks print
// their stacks, kills them, and returns true.
func (j *job) watch(ended chan struct{}, signals chan<- os.Signal, kill func()) (isHung bool) {
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

// stopTime bounds the time from a stop signal until the process has stopped.
const stopTime = 30 * time.Second

// awaitStopped waits until a process has been stopped by a signal.
func awaitStopped(pid int) error {
	for deadline := time.Now().Add(stopTime); time.Now().Before(deadline); {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}

		// The state follows the name of the command, which is in parentheses. T means stopped.
		_, state, _ := strings.Cut(string(stat), ") ")
		if strings.HasPrefix(state, "T") {
			return nil
		}

		<-time.After(time.Millisecond)
	}

	return fmt.Errorf("process %d has not stopped within %v", pid, stopTime)
}

// lineWriter is an io.Writer that calls the function with each line, without its end. Each Write
// must contain whole lines, as those of package launch do.
type lineWriter func(line string)

func (fn lineWriter) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		fn(strings.TrimSuffix(line, "\n"))
	}

	return len(text), nil
}
