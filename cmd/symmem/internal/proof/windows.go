package proof

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// WhyNoWindows returns why the last communicator in the log has no windows: memory that all ranks
// have registered. It returns "" if there are windows, or if the log does not say.
//
// Windows between machines need GIN: communication that kernels start. In this example, NCCL has
// found no plug-in for GIN:
//
//	h:1:2 [0] NCCL INFO GIN/Plugin: Failed to initialize any GIN plugin
//	h:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
//	h:1:2 [0] NCCL INFO symmetricSupport 0, cuMemEnable 1, globalGinSupport 0, cuMemGdrSupport 1
func (r *Recorder) WhyNoWindows() (string, error) {
	file, err := os.Open(r.file)
	if err != nil {
		return "", fmt.Errorf("reading NCCL's log: %w", err)
	}
	defer file.Close()
	return whyNoWindows(file)
}

func whyNoWindows(log io.Reader) (string, error) {
	const maxLineBytes = 1 << 20
	var f windowFacts
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, maxLineBytes)
	for lines.Scan() {
		line := lines.Text()
		if prefix := messagePrefix.FindString(line); prefix != "" {
			_, message, _ := strings.Cut(line, prefix)
			f.add(message)
		}
	}

	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("reading NCCL's log: %w", err)
	}

	return f.reason(), nil
}

var (
	messagePrefix = regexp.MustCompile(` NCCL (?:INFO|WARN) `)
	nodesMessage  = regexp.MustCompile(`^comm \S+ rank \d+ nRanks \d+ nNodes (\d+) `)
	// noWindowsMessage matches the messages of old and new versions of NCCL.
	noWindowsMessage = regexp.MustCompile(
		`^(?:Symmetric memory is not supported\. |symmetricSupport 0, )`)
	// noWindowsField matches a field of noWindowsMessage, such as "cuMemEnable 1".
	noWindowsField = regexp.MustCompile(`(\w+) (-?\d+)`)
)

// windowFacts holds facts from the log. isMultiNode and fields describe the last communicator.
type windowFacts struct {
	isMultiNode      bool              // there are ranks on several machines
	fields           map[string]string // of noWindowsMessage; nil unless windows are missing
	isPluginMissing  bool              // NCCL has found no usable plug-in for GIN
	isGDRCopyMissing bool              // the library GDRCopy is missing; GIN over sockets needs it
	requestedType    string            // NCCL_GIN_TYPE, if it excludes a plug-in that NCCL has found
}

func (f *windowFacts) add(message string) {
	if groups := nodesMessage.FindStringSubmatch(message); groups != nil {
		nodeCount := groups[1]
		f.isMultiNode = nodeCount != "1"
	}

	switch {
	case noWindowsMessage.MatchString(message):
		f.fields = map[string]string{}
		for _, field := range noWindowsField.FindAllStringSubmatch(message, -1) {
			name, value := field[1], field[2]
			f.fields[name] = value
		}

	case strings.HasPrefix(message, "symmetricSupport "): // followed by 1
		f.fields = nil
	case strings.HasSuffix(message, "GIN/Plugin: Failed to initialize any GIN plugin"):
		f.isPluginMissing = true
	case strings.Contains(message, "RMA/Socket") && strings.Contains(message, "requires GDRCopy"):
		f.isGDRCopyMissing = true
	case strings.HasPrefix(message, "GIN/Plugin: Skipping plugin"):
		_, afterName, hasType := strings.Cut(message, "NCCL_GIN_TYPE=")
		if hasType {
			f.requestedType, _, _ = strings.Cut(afterName, " ")
		}
	}
}

func (f *windowFacts) reason() string {
	if f.fields == nil {
		return ""
	}

	// The name of the field depends on the version of NCCL.
	ginSupport := cmp.Or(f.fields["ginSupport"], f.fields["globalGinSupport"])
	lacksGIN := ginSupport == "0"
	switch {
	case f.fields["cuMemEnable"] == "0":
		return "cuMem is disabled (NCCL_CUMEM_ENABLE)"
	case f.isMultiNode && lacksGIN:
		return f.whyNoGIN()
	default:
		return "NCCL does not say why. Possible reasons: some GPUs of a machine cannot access each " +
			"other's memory (P2P), or NCCL_WIN_ENABLE is 0"
	}
}

func (f *windowFacts) whyNoGIN() string {
	switch {
	case f.isGDRCopyMissing:
		return "windows between machines need GIN, which over sockets needs GDRCopy (libgdrapi.so)"
	case f.requestedType != "":
		return "windows between machines need GIN, and NCCL_GIN_TYPE=" + f.requestedType +
			" excludes a plug-in that NCCL has found"
	case f.isPluginMissing:
		return "windows between machines need GIN, and NCCL found no GIN plug-in"
	case f.fields["cuMemGdrSupport"] == "0":
		return "windows between machines need GIN, which needs GPUDirect RDMA with memory of cuMemCreate"
	default:
		return "windows between machines need GIN, but only some ranks have it, or ranks have " +
			"different types of it"
	}
}
