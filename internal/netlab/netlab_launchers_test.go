package netlab

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"symmem/internal/softgpu"
	"symmem/internal/sys/systest"
)

// launcherLab runs launchers such as torchrun on two machines. The launchers start ranks that
// run symmem verify on the software GPU.
type launcherLab struct {
	*Lab
	t      *testing.T
	folder string // contains the symmem binary and the launchers' files
	env    []string
}

func newLauncherLab(t *testing.T, programs ...string) *launcherLab {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the command and runs a launcher")
	}

	for _, name := range append(programs, "gcc", "nsenter") {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(fmt.Errorf("%w (see scripts/setup.sh launchers and python): %w", err,
				errors.ErrUnsupported))
		}
	}

	l := &launcherLab{Lab: New(t, Config{Machines: 2}), t: t, folder: t.TempDir()}
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}

	build := systest.Command(t, 5*time.Minute, "go", "build", "-o", l.folder, "symmem/cmd/symmem")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the command: %v\n%s", err, output)
	}

	l.env = append(os.Environ(), "PATH="+l.folder+":"+os.Getenv("PATH"), "SYMMEM_BACKEND=nccl",
		"SYMMEM_CUDA="+cuda, "SYMMEM_NCCL="+nccl)
	return l
}

type launch struct {
	*exec.Cmd
	output safeBuffer
}

// safeBuffer is a bytes.Buffer that is safe for concurrent use.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (l *launcherLab) start(machine int, name string, args ...string) *launch {
	l.t.Helper()
	r := &launch{Cmd: systest.Command(l.t, 3*time.Minute, name, args...)}
	r.Env = l.env
	r.Stdout, r.Stderr, r.Dir = &r.output, &r.output, l.folder
	if err := l.Machines[machine].Start(r.Cmd); err != nil {
		l.t.Fatal(err)
	}

	return r
}

// checkEmpty checks that no processes are left on the machines. It first waits for processes
// that are about to exit.
func (l *launcherLab) checkEmpty() {
	l.t.Helper()
	for _, m := range l.Machines {
		for end := time.Now().Add(10 * time.Second); ; {
			left := l.processes(m)
			if len(left) == 0 {
				break
			}

			if time.Now().After(end) {
				l.t.Errorf("processes left on %s: %q", m.Name, left)
				break
			}

			<-time.After(100 * time.Millisecond)
		}
	}
}

func (l *launcherLab) processes(m *Machine) (found []string) {
	var namespace string
	err := m.Do(func() (err error) {
		namespace, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}

	paths, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, path := range paths {
		folder := strings.TrimSuffix(path, "ns/net")
		if link, err := os.Readlink(path); err == nil && link == namespace {
			command, _ := os.ReadFile(folder + "cmdline")
			if !strings.HasPrefix(string(command), os.Args[0]) {
				found = append(found, strings.ReplaceAll(string(command), "\x00", " "))
			}
		}
	}

	return found
}

// expect waits until a launcher exits. It checks that the launcher succeeded or, if succeeds is
// false, that it failed. It also checks that the output contains the given texts.
func (l *launcherLab) expect(r *launch, succeeds bool, texts ...string) {
	l.t.Helper()
	err := r.Wait()
	output := r.output.String()
	if (err == nil) != succeeds {
		l.t.Errorf("%s: got %v; want success = %t\n%s", r.Path, err, succeeds, output)
	}

	for _, text := range texts {
		if !strings.Contains(output, text) {
			l.t.Errorf("%s did not print %q:\n%s", r.Path, text, output)
		}
	}
}

// killedOnce is the script that each rank executes. $ATTEMPT is the number of earlier attempts.
// In the first attempt, the script runs verify for so long that killVictim can kill a rank. In
// the second attempt, it runs verify to the end.
const killedOnce = `
export NCCL_HOSTID=$(uname -n) LAB_RANK=$RANK
if [ "$ATTEMPT" != 0 ]; then exec symmem verify --ranks 4 --churn 20; fi
exec symmem verify --for 2m`

// killVictim kills rank 3 once rank 0 has reported a round in output, which is the output of its
// launcher. By then, all ranks know the name of rank 3's machine.
func (l *launcherLab) killVictim(output *safeBuffer) {
	l.t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if strings.Contains(output.String(), "round 1") {
			paths, _ := filepath.Glob("/proc/[0-9]*/environ")
			for _, path := range paths {
				environment, _ := os.ReadFile(path)
				command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				if bytes.Contains(environment, []byte("LAB_RANK=3\x00")) &&
					bytes.Contains(environment, []byte(l.folder)) &&
					bytes.HasPrefix(command, []byte("symmem\x00")) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
					return
				}
			}
		}

		<-time.After(50 * time.Millisecond)
	}

	l.t.Fatalf("rank 0 did not report a round, or rank 3 is not running:\n%s", output.String())
}

// lostRank is how errors must refer to rank 3.
const lostRank = "rank 3 on node-b"

func TestTorchrunRestartsRanksOnTwoMachines(t *testing.T) {
	l := newLauncherLab(t, "torchrun")
	for restarts := range 2 {
		var all []*launch
		for i, m := range l.Machines {
			all = append(all, l.start(i, "torchrun", "--nnodes=2", fmt.Sprint("--node-rank=", i),
				"--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=job",
				"--rdzv-endpoint="+l.Machines[0].Addresses[0].String()+":29400",
				"--local-addr="+m.Addresses[0].String(), fmt.Sprint("--max-restarts=", restarts),
				"--monitor-interval=0.1", "--no-python", "sh", "-c",
				"ATTEMPT=$TORCHELASTIC_RESTART_COUNT"+killedOnce))
		}

		l.killVictim(&all[0].output)
		for i, r := range all {
			texts := []string{}
			if i == 0 {
				texts = append(texts, lostRank)
			}

			l.expect(r, restarts > 0, texts...)
		}

		l.checkEmpty()
	}
}

// TestSilentMachineIsNamedByVerify cuts the network between two machines whose ranks run verify.
// Only symmem can notice the failure, because the software NCCL does not use the network.
func TestSilentMachineIsNamedByVerify(t *testing.T) {
	l := newLauncherLab(t)
	l.env = append(l.env, "SYMMEM_TOKEN="+rand.Text(), "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2",
		"MASTER_ADDR="+l.Machines[0].Addresses[0].String(), "MASTER_PORT=29500",
		"SYMMEM_PROGRESS=lines")
	var all []*launch
	for rank := range 4 {
		program := fmt.Sprintf("export NCCL_HOSTID=$(uname -n) RANK=%d LOCAL_RANK=%d\n"+
			"exec symmem verify --for 2m --timeout 1m", rank, rank%2)
		all = append(all, l.start(rank/2, "sh", "-c", program))
	}

	for end := time.Now().Add(time.Minute); !strings.Contains(all[0].output.String(), "round"); {
		if time.Now().After(end) {
			t.Fatalf("rank 0 did not start:\n%s", all[0].output.String())
		}

		<-time.After(50 * time.Millisecond)
	}

	begin := time.Now()
	l.SetMachine(1, Link{Cut: true})
	for rank, r := range all {
		l.expect(r, false, []string{"ranks 2-3 on node-b", "ranks 0-1 on node-a"}[rank/2])
	}

	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("the ranks exited after %v; want at most 30 s", took)
	}

	l.checkEmpty()
}

// agent writes a script for mpirun to use instead of ssh, and returns the script's path. The script
// runs a command on the machine with the given address.
func (l *launcherLab) agent() string {
	l.t.Helper()
	text := "#!/bin/sh\naddress=$1; shift\ncase $address in\n"
	for _, m := range l.Machines {
		text += fmt.Sprintf("%v) thread=%d ;;\n", m.Addresses[0], m.Thread)
	}

	text += "esac\n" +
		"exec nsenter --target $thread --net --uts --mount -- sh -c \"$*\"\n"
	path := filepath.Join(l.folder, "agent")
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		l.t.Fatal(err)
	}

	return path
}

func TestMPIRunStartsRanksOnTwoMachines(t *testing.T) {
	l := newLauncherLab(t, "mpirun")
	first, second := l.Machines[0].Addresses[0].String(), l.Machines[1].Addresses[0].String()
	l.env = append(l.env, "SYMMEM_TOKEN="+rand.Text(), "MASTER_ADDR="+first, "MASTER_PORT=29500",
		"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	agent := l.agent()
	for attempt := range 2 {
		args := []string{
			"--mca", "plm_rsh_agent", agent, "--mca", "plm_rsh_no_tree_spawn", "1", "--oversubscribe",
			"--host", first + ":2," + second + ":2", "-np", "4",
		}
		for _, name := range []string{
			"PATH", "SYMMEM_BACKEND", "SYMMEM_CUDA", "SYMMEM_NCCL", "SYMMEM_TOKEN", "MASTER_ADDR",
			"MASTER_PORT",
		} {
			args = append(args, "-x", name)
		}

		program := fmt.Sprintf("ATTEMPT=%d RANK=$OMPI_COMM_WORLD_RANK%s", attempt, killedOnce)
		r := l.start(0, "mpirun", append(args, "sh", "-c", program)...)
		if attempt == 0 {
			l.killVictim(&r.output)
		}

		l.expect(r, attempt > 0)
		l.checkEmpty()
	}
}

func (l *launcherLab) slurmConfig() string {
	text := fmt.Sprintf(`ClusterName=lab
SlurmctldHost=%s(%v)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation=%[3]s/state
SlurmctldPidFile=%[3]s/slurmctld.pid
SlurmdPidFile=%[3]s/%%n.pid
SlurmdSpoolDir=%[3]s/%%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
PartitionName=lab Nodes=ALL Default=YES State=UP OverSubscribe=YES
`, l.Machines[0].Name, l.Machines[0].Addresses[0], l.folder)
	for _, m := range l.Machines {
		text += fmt.Sprintf("NodeName=%s NodeAddr=%v CPUs=2 State=UNKNOWN\n", m.Name, m.Addresses[0])
	}

	return text
}

// awaitStepsReported waits until Slurm's processes for job steps have exited. After srun has
// returned, these processes still report the end of the step to the controller. If the
// controller were stopped before that, they would retry for minutes.
func (l *launcherLab) awaitStepsReported() {
	l.t.Helper()
	isStep := func(command string) bool { return strings.HasPrefix(command, "slurmstepd") }
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		var all []string
		for _, m := range l.Machines {
			all = append(all, l.processes(m)...)
		}

		if !slices.ContainsFunc(all, isStep) {
			return
		}

		<-time.After(100 * time.Millisecond)
	}
}

func TestSlurmStartsRanksOnTwoMachines(t *testing.T) {
	l := newLauncherLab(t, "slurmctld", "slurmd", "srun")
	config := filepath.Join(l.folder, "slurm.conf")
	if err := os.WriteFile(config, []byte(l.slurmConfig()), 0o644); err != nil {
		t.Fatal(err)
	}

	l.env = append(l.env, "SLURM_CONF="+config, "SYMMEM_TOKEN="+rand.Text(),
		"MASTER_ADDR="+l.Machines[0].Addresses[0].String(), "MASTER_PORT=29500")
	daemons := []*launch{l.start(0, "slurmctld", "-D", "-i")}
	for i, m := range l.Machines {
		daemons = append(daemons, l.start(i, "slurmd", "-D", "-N", m.Name))
	}

	for attempt := range 2 {
		program := fmt.Sprintf("ATTEMPT=%d RANK=$SLURM_PROCID%s", attempt, killedOnce)
		r := l.start(0, "srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--wait=0",
			"sh", "-c", program)
		if attempt == 0 {
			l.killVictim(&r.output)
			l.expect(r, false, lostRank)
		} else {
			l.expect(r, true)
		}
	}

	l.awaitStepsReported()
	for _, d := range daemons {
		_ = d.Process.Signal(syscall.SIGTERM)
		_ = d.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", d.Path, d.output.String())
		}
	}

	l.checkEmpty()
}
