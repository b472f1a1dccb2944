package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"symmem/internal/rendezvous"
	"symmem/internal/sys"
)

const roleVariable = "SYMMEM_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(roles[role](os.Getenv("RANK")))
	}

	goleak.VerifyTestMain(m)
}

// roles holds the programs that ranks run, by name. Each is called with the rank's number and
// returns the exit code.
var roles = map[string]func(rank string) int{
	"environ":         roleEnviron,
	"connect":         roleConnect,
	"fail on rank 1":  roleFailOnRank1,
	"print signals":   rolePrintSignals,
	"ignore signals":  roleIgnoreSignals,
	"start child":     roleStartChild,
	"leave child":     roleLeaveChild,
	"lines":           roleLines,
	"cat":             roleCat,
	"ask":             roleAsk,
	"launch":          roleLaunch,
	"print forever":   rolePrintForever,
	"launch printers": roleLaunchPrinters,
	"launch with 48 descriptors": func(string) int {
		return launchWithDescriptors(48, "open many connections", 2)
	},
	"launch with 16 descriptors": func(string) int { return launchWithDescriptors(16, "connect", 4) },
	"open many connections":      roleOpenManyConnections,
	"lose rank":                  roleLoseRank,
}

// testTimeout is the time limit of waits in tests. It expires only if a test hangs.
const testTimeout = 60 * time.Second

// forever blocks. In a program without cgo, the runtime would report select {} as a deadlock.
func forever() int {
	for range time.Tick(time.Hour) {
	}

	return 0
}

func roleEnviron(string) int {
	for _, name := range []string{
		"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
		"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "OMP_NUM_THREADS",
		"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
	} {
		fmt.Printf("%s=%s\n", name, os.Getenv(name))
	}

	return 0
}

func connectRank() (rendezvous.World, *rendezvous.Client, io.Closer, error) {
	w, err := rendezvous.Discover(os.LookupEnv, rendezvous.Options{})
	if err != nil {
		return w, nil, nil, err
	}

	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	store, leave, err := rendezvous.Connect(ctx, w)
	return w, store, leave, err
}

func roleConnect(string) int {
	w, store, leave, err := connectRank()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer leave.Close()
	sum, err := store.Add(context.Background(), "sum", int64(w.Rank))
	if err != nil || sum < 0 {
		return 2
	}

	fmt.Println(w.Rank, w.Size, w.Source, w.Route.Kind)
	return 0
}

// In roleFailOnRank1, rank 1 fails after rank 0 has installed its signal handler. Rank 0 prints the
// signal that it gets.
func roleFailOnRank1(rank string) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	_, _, _, err := connectRank()
	if err != nil {
		return 9
	}

	if rank == "1" {
		return 7
	}

	fmt.Println("got", <-signals)
	return 3
}

// rolePrintSignals prints that it is ready, and then prints all signals that it gets, up to
// SIGTERM.
func rolePrintSignals(string) int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals)
	fmt.Println("ready", os.Getpid())
	for s := range signals {
		if s == syscall.SIGURG { // the Go runtime sends SIGURG to its threads
			continue
		}

		fmt.Println("got", s)
		if s == syscall.SIGTERM {
			break
		}
	}

	return 0
}

func roleIgnoreSignals(string) int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	fmt.Println("ready", os.Getpid())
	return forever()
}

func roleStartChild(string) int {
	if pid, err := startChild(); err == nil {
		fmt.Println("ready", os.Getpid(), pid)
	}

	return forever()
}

// roleLeaveChild exits while its child is still running.
func roleLeaveChild(string) int {
	pid, err := startChild()
	fmt.Println("ready", os.Getpid(), pid)
	if err != nil {
		return 1
	}

	return 0
}

// startChild starts a process that runs until it is killed, and that keeps this process's standard
// error open.
func startChild() (int, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=ignore signals")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}

	return cmd.Process.Pid, nil
}

// longLine exceeds the capacity of a pipe.
var longLine = strings.Repeat("x", 100_000)

func roleLines(rank string) int {
	fmt.Print("one of "+rank+"\ntwo\r\n\n", longLine, "\nno end")
	fmt.Fprint(os.Stderr, "error of "+rank+"\n")
	return 0
}

func roleCat(string) int {
	if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
		return 1
	}

	return 0
}

func roleAsk(rank string) int {
	if rank != "0" {
		return 0
	}

	fmt.Print("go on? ")
	if answer, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil || answer != "yes\n" {
		return 1
	}

	return 0
}

// roleLaunch runs a launcher, which the test kills.
func roleLaunch(string) int {
	spec := newSpec("print signals", 2, os.Stdout)
	if _, err := Run(context.Background(), spec); err != nil {
		fmt.Println(err)
	}

	return 0
}

// rolePrintForever starts a child and prints until it is killed.
func rolePrintForever(string) int {
	pid, err := startChild()
	if err != nil {
		return 1
	}

	for {
		fmt.Println("ready", os.Getpid(), pid)
	}
}

// roleLaunchPrinters runs a launcher. The test closes the reader of the launcher's standard
// output.
func roleLaunchPrinters(string) int {
	spec := newSpec("print forever", 2, os.Stdout)
	spec.Stderr = os.Stderr
	result, err := Run(context.Background(), spec)
	if err != nil {
		return 1
	}

	fmt.Fprintln(os.Stderr, "result signal:", result.Signal)
	return 0
}

// launchWithDescriptors launches ranks in the given role from a process with a limited number of
// descriptors.
func launchWithDescriptors(descriptors uint64, role string, ranks int) int {
	limit := syscall.Rlimit{Cur: descriptors, Max: descriptors}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		fmt.Println(err)
		return 1
	}

	// Keep the role out of the ranks' environment, because the ranks would otherwise become
	// launchers too.
	if err := os.Unsetenv(roleVariable); err != nil {
		fmt.Println(err)
		return 1
	}

	if _, err := Run(context.Background(), newSpec(role, ranks, os.Stdout)); err != nil {
		fmt.Println(err)
	}

	return 0
}

// roleOpenManyConnections opens more connections to the launcher's store than the launcher has
// descriptors.
func roleOpenManyConnections(string) int {
	var clients []*rendezvous.Client
	for len(clients) < 64 {
		_, client, _, err := connectRank()
		if err != nil {
			break
		}

		clients = append(clients, client)
	}

	defer runtime.KeepAlive(clients)
	return forever()
}

// In roleLoseRank, rank 0 prints that rank 1 was lost, as a real program would.
func roleLoseRank(rank string) int {
	_, store, _, err := connectRank()
	if err != nil {
		return 9
	}

	fmt.Println("ready", os.Getpid())
	if rank == "1" {
		return forever()
	}

	// A real program would detect the loss itself. Here, the test writes this line after it has
	// killed rank 1.
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil || store == nil {
		return 8
	}

	fmt.Print("rank 1 is lost: ", line)
	return 5
}

// newSpec returns a Spec for ranks in a role. Their output goes to w.
func newSpec(role string, ranks int, w io.Writer) Spec {
	// Remove this process's role, because Go programs use the first of two values.
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, roleVariable+"=")
	})
	return Spec{
		Ranks: ranks, Command: []string{"/proc/self/exe"},
		Env:    append(env, roleVariable+"="+role),
		Stdout: w, Stderr: w, Grace: testTimeout, TermWait: testTimeout,
	}
}

type transcript struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{}
}

func newTranscript() *transcript { return &transcript{changed: make(chan struct{})} }

func (p *transcript) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
	return p.text.Write(b)
}

func (p *transcript) read() (string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String(), p.changed
}

// waitFor waits until the output contains substring n times, and returns the output.
func (p *transcript) waitFor(t *testing.T, n int, substring string) string {
	t.Helper()
	deadline := time.After(testTimeout)
	for {
		text, changed := p.read()
		if strings.Count(text, substring) >= n {
			return text
		}

		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%q does not occur %d times in %q", substring, n, text)
		}
	}
}

func processIDs(t *testing.T, text string) (processes []int) {
	t.Helper()
	for line := range strings.Lines(text) {
		_, numbers, ok := strings.Cut(line, "ready ")
		if !ok {
			continue
		}

		for word := range strings.FieldsSeq(numbers) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}

			processes = append(processes, pid)
		}
	}

	return processes
}

func waitForProcessEnd(t *testing.T, pid int) {
	t.Helper()
	process, err := sys.Pidfd(pid)
	if errors.Is(err, syscall.ESRCH) {
		return
	}

	if err != nil {
		t.Fatal(err)
	}

	defer process.Close()
	err = process.SetReadDeadline(time.Now().Add(testTimeout))
	if err = errors.Join(err, sys.AwaitEnd(process)); err != nil {
		t.Fatalf("process %d is still running: %v", pid, err)
	}
}
