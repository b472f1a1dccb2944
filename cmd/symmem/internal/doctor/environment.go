package doctor

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Variable is a setting that can affect symmem, NCCL or CUDA: an environment variable or a line of
// NCCL's configuration files.
type Variable struct {
	Name string `json:"name"`
	// Value is the variable's value, or "(hidden)" if it is a secret.
	Value string `json:"value"`
	// File is the path of the configuration file, or "" for an environment variable.
	File string `json:"file,omitempty"`
}

var relevantPrefixes = []string{"NCCL_", "CUDA_", "SYMMEM_", "TORCH_", "TORCHELASTIC_", "PYTORCH_"}

// InspectVariables returns the relevant variables in environ and in NCCL's configuration files.
// environ has the format of os.Environ and takes precedence over the files.
func InspectVariables(environ []string) []Variable {
	all := []Variable{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if isRelevant(name) {
			all = append(all, Variable{Name: name, Value: displayValue(name, value)})
		}
	}
	for _, file := range configFiles() {
		for _, v := range readConfigFile(file) {
			isSame := func(other Variable) bool { return other.Name == v.Name }
			if !slices.ContainsFunc(all, isSame) {
				all = append(all, v)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Variable) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func isRelevant(name string) bool {
	return slices.ContainsFunc(relevantPrefixes, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// displayValue returns the value to report, which hides tokens.
func displayValue(name, value string) string {
	if strings.Contains(name, "TOKEN") && value != "" {
		return "(hidden)"
	}
	return value
}

// configFiles returns the paths of NCCL's configuration files in order of precedence
// (src/misc/param.cc).
func configFiles() []string {
	userFile := os.Getenv("NCCL_CONF_FILE")
	if home, err := os.UserHomeDir(); userFile == "" && err == nil {
		userFile = filepath.Join(home, ".nccl.conf")
	}
	return []string{userFile, "/etc/nccl.conf"}
}

// readConfigFile parses NAME=VALUE lines as NCCL does. It returns nil if the file cannot be
// opened.
func readConfigFile(path string) []Variable {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	var all []Variable
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), "=")
		if ok && !strings.HasPrefix(name, "#") {
			all = append(all, Variable{Name: name, Value: displayValue(name, value), File: path})
		}
	}
	return all
}

// variableEffect describes the effect of some values of one variable.
type variableEffect struct {
	name   string
	values []string // values with the effect, in any case; nil if all values have it
	text   string   // the effect, such as "hides every GPU"
	advice string   // how to avoid the effect; if it is empty, judge does not warn
}

const unsetAdvice = "unset it, unless this is intended"

var onlyZero = []string{"0"} // for variableEffect.values

// variableEffects lists the known effects. No value of a variable has more than one effect.
var variableEffects = []variableEffect{
	{
		"NCCL_WIN_ENABLE", onlyZero,
		"switches windows off, so every collective takes the plain path", unsetAdvice,
	},
	{
		"NCCL_CUMEM_ENABLE", onlyZero,
		"prevents NCCL from using virtual memory management, and thus windows", unsetAdvice,
	},
	{
		"NCCL_P2P_DISABLE", []string{"1"}, "prevents GPUs from accessing each other's memory, " +
			"and most versions of NCCL from using window kernels", unsetAdvice,
	},
	{
		"NCCL_P2P_LEVEL", []string{"LOC", "0"}, "prevents GPUs from accessing each other's " +
			"memory, and NCCL from using window kernels", unsetAdvice,
	},
	{
		"NCCL_HOSTID", nil, "makes NCCL treat ranks with different values as ranks on different " +
			"machines, which have windows only if NCCL has a network that supports them",
		unsetAdvice,
	},
	{
		"NCCL_LOCAL_REGISTER", onlyZero,
		"prevents NCCL 2.27 from creating windows without symmetric memory", unsetAdvice,
	},
	{
		"NCCL_LSA_TEAM_SIZE", nil, "limits the ranks whose memory NCCL maps, and thus the groups " +
			"that have window kernels", unsetAdvice,
	},
	{
		"NCCL_SYM_KERNEL", nil, "allows only some window kernels, so calls that none of them " +
			"supports fail", unsetAdvice,
	},
	{
		"NCCL_RUNTIME_CONNECT", []string{"1"}, "makes NCCL connect at the first collective, so a " +
			"launch may wait for ranks that have not yet reached it", "unset it: symmem sets it to 0",
	},
	{
		"NCCL_COMM_BLOCKING", onlyZero,
		"makes NCCL calls return before they have completed, which symmem does not support",
		"unset it",
	},
	{
		"NCCL_DEBUG", []string{"VERSION", "WARN", "ABORT"}, "prevents NCCL from logging which kernels " +
			"it uses, which --prove needs", "unset it, or set it to INFO",
	},
	{
		"NCCL_IPC_USE_ABSTRACT_SOCKET", onlyZero,
		"makes NCCL share memory through sockets in /tmp, which all ranks must see", unsetAdvice,
	},
	{
		"SYMMEM_PATH", []string{"plain"}, "makes every collective take the plain path", unsetAdvice,
	},
	{
		"CUDA_LAUNCH_BLOCKING", []string{"1"}, "makes each launch wait for its completion, which " +
			"is slow and may block ranks forever", "unset it",
	},
	{
		"CUDA_VISIBLE_DEVICES",
		[]string{"", "-1", "NoDevFiles"},
		"hides every GPU",
		"unset it, or list GPUs",
	},
	{name: "NCCL_DEBUG_FILE", text: "names the file from which --prove and the trial read NCCL's log"},
	{name: "NCCL_DEBUG_SUBSYS", text: "must contain TUNING for --prove and the trial"},
	{name: "NCCL_ALGO", text: "does not affect window kernels"},
	{name: "NCCL_PROTO", text: "does not affect window kernels"},
	{
		name: "NCCL_NVLS_ENABLE", values: onlyZero,
		text: "prevents NCCL from using NVLink multicast, which symmem does not need",
	},
	{name: "SYMMEM_BACKEND", text: "selects the backend"},
	{name: "SYMMEM_TOKEN", text: "protects the store from other users"},
	{name: "SYMMEM_TUNING", text: "names the table from which paths are chosen"},
	{
		name: "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", values: []string{"1", "true"},
		text: "makes PyTorch register its own segments with its own communicators, not with symmem's",
	},
}

func (e *variableEffect) matches(v *Variable) bool {
	if e.name != v.Name {
		return false
	}
	isValue := func(value string) bool {
		return strings.EqualFold(value, strings.TrimSpace(v.Value))
	}
	return len(e.values) == 0 || slices.ContainsFunc(e.values, isValue)
}

func judgeVariables(f *Facts, s *Section) {
	for i := range f.Variables {
		f.Variables[i].judge(f.RequestedBackend, s)
	}
	if len(s.Findings) == 0 {
		s.addOK("no variable of NCCL, CUDA, PyTorch or symmem is set")
	}
}

// judge adds a finding about the variable and its effect to s. If the host backend was requested,
// judge warns only about symmem's variables, because the others do not affect that backend.
func (v *Variable) judge(requestedBackend string, s *Section) {
	setting := fmt.Sprintf("%s=%s", v.Name, v.Value)
	if v.File != "" {
		setting += " (in " + v.File + ")"
	}
	index := slices.IndexFunc(variableEffects, func(e variableEffect) bool { return e.matches(v) })
	if index < 0 {
		s.addOK("%s", setting)
		return
	}
	effect := &variableEffects[index]
	affectsBackend := strings.HasPrefix(v.Name, "SYMMEM_") || requestedBackend != "host"
	switch {
	case effect.advice == "":
		s.addOK("%s %s", setting, effect.text)
	case affectsBackend:
		s.add(Warn, effect.advice, "%s %s", setting, effect.text)
	default:
		s.addOK("%s", setting)
	}
}
