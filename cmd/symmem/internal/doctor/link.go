package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"symmem/internal/cuda"
)

// Links describes the connections between GPUs.
type Links struct {
	// ActiveNVLinks contains the number of active NVLinks of each GPU. It is nil if unknown.
	ActiveNVLinks []int `json:"nvlinks_up"`
	// Pairs lists all ordered pairs of GPUs.
	Pairs []Pair `json:"pairs"`
	// NVMLError states why NVML is not available.
	NVMLError string `json:"nvml_error,omitempty"`
}

// Pair describes the access of one GPU to the memory of another.
type Pair struct {
	From int `json:"from"`
	To   int `json:"to"`
	// HasAccess is set if kernels on From can access the memory of To.
	HasAccess bool `json:"access"`
	// HasAtomics is set if kernels on From can use atomic operations on the memory of To.
	HasAtomics bool `json:"atomics"`
	// SpeedRank is 0 for the pairs with the fastest links, and larger for slower links.
	SpeedRank int `json:"rank"`
	// NVLink is "yes", "no", or "unknown".
	NVLink string `json:"nvlink"`
}

// InspectLinks queries CUDA for each pair of GPUs, and NVML for NVLinks.
func InspectLinks(gpus []GPU) Links {
	l := Links{Pairs: []Pair{}}
	if len(gpus) < 2 {
		return l
	}
	if driver, err := cuda.Load(); err == nil {
		l.addPairs(driver, len(gpus))
	}
	if err := l.addNVLinks(gpus); err != nil {
		l.NVMLError = err.Error()
	}
	return l
}

func (l *Links) addPairs(driver *cuda.Driver, gpuCount int) {
	for from := range gpuCount {
		for to := range gpuCount {
			source, sourceErr := driver.Device(from)
			target, targetErr := driver.Device(to)
			if from == to || sourceErr != nil || targetErr != nil {
				continue
			}
			p := Pair{From: from, To: to, NVLink: "unknown"}
			hasAccess, err := source.CanAccessPeer(target)
			p.HasAccess = err == nil && hasAccess
			attribute := func(name cuda.P2PAttribute) int {
				value, err := source.P2PAttribute(name, target)
				if err != nil {
					return 0
				}
				return value
			}
			p.HasAtomics = attribute(cuda.P2PNativeAtomicSupported) != 0
			p.SpeedRank = attribute(cuda.P2PPerformanceRank)
			l.Pairs = append(l.Pairs, p)
		}
	}
}

// addNVLinks adds what NVML (NVIDIA's management library) reports about NVLinks. If NVML does not
// support a query, its result remains unknown.
func (l *Links) addNVLinks(gpus []GPU) error {
	management, err := openNVML()
	if err != nil {
		return err
	}
	defer management.close()
	devices := make([]nvmlDevice, len(gpus))
	for i := range gpus {
		if devices[i], err = management.deviceAt(gpus[i].PCIAddress); err != nil {
			return fmt.Errorf("finding GPU %d: %w", i, err)
		}
	}
	for i := range l.Pairs {
		p := &l.Pairs[i]
		connected, err := management.areConnectedByNVLink(devices[p.From], devices[p.To])
		switch {
		case errors.Is(err, errNVMLUnsupported):
		case err != nil:
			return fmt.Errorf("querying the link between GPUs %d and %d: %w", p.From, p.To, err)
		default:
			p.NVLink = formatBool(connected)
		}
	}
	for _, d := range devices {
		l.ActiveNVLinks = append(l.ActiveNVLinks, management.countActiveNVLinks(d))
	}
	return nil
}

func judgeLinks(f *Facts, s *Section) {
	l := &f.Links
	if len(f.GPUs) < 2 {
		return
	}
	count := len(l.Pairs)
	withoutAccess := l.matchingPairs(func(p *Pair) bool { return !p.HasAccess })
	if len(withoutAccess) > 0 {
		s.add(Warn,
			"see nvidia-smi topo -p2p r; if the GPUs are connected by PCI Express, disable ACS "+
				"on the bridges; in a virtual machine, check the hypervisor's settings",
			"%d of %d pairs of GPUs have no peer access, so groups that include such a pair have "+
				"no windows: %s", len(withoutAccess), count, joinShortened(withoutAccess))
	} else {
		s.addOK("peer access: all %d pairs of GPUs", count)
	}
	unconnected := l.matchingPairs(func(p *Pair) bool { return p.NVLink == "no" })
	unknown := l.matchingPairs(func(p *Pair) bool { return p.NVLink == "unknown" })
	switch {
	case len(unknown) > 0:
		s.addOK("NVLink: unknown (%s)", unknownReason(l.NVMLError))
	case len(unconnected) > 0:
		s.add(Warn, "form groups of ranks whose GPUs are connected by NVLink; see nvidia-smi topo -m",
			"%d of %d pairs of GPUs are not connected by NVLink; NCCL 2.29 and newer have window "+
				"kernels only for groups in which NVLink connects all pairs: %s", len(unconnected), count,
			joinShortened(unconnected))
	default:
		s.addOK("NVLink: all %d pairs of GPUs; active links on each GPU: %s", count,
			joinNumbers(l.ActiveNVLinks))
	}
	if len(l.ActiveNVLinks) > 0 && slices.Max(l.ActiveNVLinks) != slices.Min(l.ActiveNVLinks) {
		s.add(Warn, "see nvidia-smi nvlink --status", "the GPUs have different numbers of active "+
			"NVLinks: %s", joinNumbers(l.ActiveNVLinks))
	}
}

func unknownReason(err string) string {
	if err == "" {
		return "NVML does not report it"
	}
	return err
}

func (l *Links) matchingPairs(match func(*Pair) bool) []string {
	var all []string
	for i := range l.Pairs {
		if p := &l.Pairs[i]; match(p) {
			all = append(all, fmt.Sprintf("%d to %d", p.From, p.To))
		}
	}
	return all
}

func joinShortened(list []string) string {
	const maxTexts = 8
	if len(list) > maxTexts {
		return strings.Join(list[:maxTexts], ", ") + ", ..."
	}
	return strings.Join(list, ", ")
}

func joinNumbers(list []int) string {
	if len(list) == 0 {
		return "unknown"
	}
	return strings.Trim(fmt.Sprint(list), "[]")
}
