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

// Environment variables that make a process a rank: its role, its task as JSON, and its job.
const (
	roleVariable = "SYMMEM_CHAOS_ROLE"
	taskVariable = "SYMMEM_CHAOS_TASK"
	jobVariable  = "SYMMEM_CHAOS_JOB"
)

// roles lists the main functions of ranks. An error means that the program could not be run;
// failures of symmem are in what the rank writes.
var roles = map[string]func(task []byte) error{
	"page":     pageRankMain,
	"programs": programsRank,
	"signals":  signalsRank,
}

// beRank runs a role and returns the exit code.
func beRank(role string) int {
	if err := roles[role]([]byte(os.Getenv(taskVariable))); err != nil {
		fmt.Fprintf(os.Stderr, "rank %s: %v\n", os.Getenv("RANK"), err)
		return 1
	}
	return 0
}

// job starts the ranks of a program.
type job struct {
	role  string
	ranks int
	task  any
	// limit bounds the time of the program. After that it counts as a hang, and the ranks print their
	// goroutines.
	limit time.Duration
	// variables are added to the environment of the ranks.
	variables []string
	// hear is called with every line that ranks write to standard output, one at a time.
	hear func(line string)
	// id marks the environment of all processes of the job, and the store that rank 0 serves.
	id string
	// folder is for temporary files of the ranks; empty is the default one.
	folder string
}

// errHang means that a program did not end.
var errHang = errors.New("hang")

// environment returns the environment of the ranks.
func (j *job) environment() ([]string, error) {
	task, err := json.Marshal(j.task)
	if err != nil {
		return nil, err
	}
	env := os.Environ()
	if os.Getenv("GORACE") == "" {
		// The race detector would delay the end of each process by a second.
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
	result, err := launch.Run(ctx, launch.Spec{
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

// withoutLauncher returns the options of a rank that does not use the launcher's store: rank 0
// serves one, and no launcher reports that a rank has ended.
func withoutLauncher(o symmem.Options) (_ symmem.Options, err error) {
	if o.Rank, err = strconv.Atoi(os.Getenv("RANK")); err != nil {
		return o, err
	}
	if o.Size, err = strconv.Atoi(os.Getenv("WORLD_SIZE")); err != nil {
		return o, err
	}
	o.Store = "unix:@" + store(os.Getenv(jobVariable))
	return o, errors.Join(os.Unsetenv(rendezvous.EnvStore), os.Unsetenv(rendezvous.EnvToken))
}

// store returns the name of the socket of the store that rank 0 serves.
func store(job string) string { return "symmem-chaos-" + job }

// dumpTime bounds the time in which ranks print their goroutines.
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

// stateTime bounds the delivery of a signal.
const stateTime = 30 * time.Second

// awaitStopped waits until a process is in the stopped state.
func awaitStopped(pid int) error {
	for deadline := time.Now().Add(stateTime); time.Now().Before(deadline); {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		// The state is the field after the name, which is in parentheses.
		if _, state, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(state, "T") {
			return nil
		}
		<-time.After(time.Millisecond)
	}
	return fmt.Errorf("process %d has not stopped within %v", pid, stateTime)
}

// hearing implements a writer that calls a function with each line. The launcher writes whole
// lines.
type hearing func(line string)

func (h hearing) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		h(strings.TrimSuffix(line, "\n"))
	}
	return len(text), nil
}
