package doctor

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"symmem/internal/dl/dltest"
)

// nvmlSource is a C fake of NVML, NVIDIA's management library. It has three GPUs, and NVLink
// connects GPUs 0 and 1:
//
//	GPU 0: 0000:01:00.0, 12 active links
//	GPU 1: 0000:02:00.0, 13 active links
//	GPU 2: 0000:03:00.0, does not support queries about links
//
// Error codes: 1 not initialized, 2 invalid argument, 3 not supported, 6 not found.
const nvmlSource = `
#include <stdint.h>
#include <string.h>
typedef struct gpu { int number; } *nvmlDevice_t;
static struct gpu gpus[] = {{0}, {1}, {2}};
static int started;
int nvmlInit_v2(void) { started++; return 0; }
int nvmlShutdown(void) { started--; return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
	if (!started) return 1;
	if (length != 80) return 2;
	strcpy(version, "580.159.03");
	return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device) {
	for (int i = 0; i < 3; i++) {
		char name[] = "0000:00:00.0";
		name[6] = '1' + i;
		if (strcmp(bus, name) == 0) { *device = &gpus[i]; return 0; }
	}
	return 6;
}
int nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, int index, int *status) {
	if (index != 2) return 2;
	if (a->number == 2 || b->number == 2) return 3;
	*status = 0;
	return 0;
}
int nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, int *active) {
	if (d->number == 2) return 3;
	*active = link < 12u + d->number;
	return 0;
}
`

// Facts in nvmlSource.
var nvmlAddresses = []string{"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"}

const nvmlVersion = "580.159.03"

func gpusAtPCI(addresses ...string) []GPU {
	gpus := make([]GPU, len(addresses))
	for i, address := range addresses {
		gpus[i] = GPU{Ordinal: i, PCIAddress: address}
	}

	return gpus
}

func TestAddNVLinks(t *testing.T) {
	t.Setenv(nvmlVariable, dltest.Compile(t, "libnvidia-ml.so.1", nvmlSource))
	l := Links{Pairs: []Pair{
		{From: 0, To: 1, NVLink: "unknown"},
		{From: 1, To: 2, NVLink: "unknown"},
	}}
	if err := l.addNVLinks(gpusAtPCI(nvmlAddresses...)); err != nil {
		t.Fatal(err)
	}

	want := Links{
		ActiveNVLinks: []int{12, 13, 0},
		Pairs: []Pair{
			{From: 0, To: 1, NVLink: "yes"},
			{From: 1, To: 2, NVLink: "unknown"},
		},
	}
	if diff := cmp.Diff(want, l); diff != "" {
		t.Errorf("the links differ (-want +got):\n%s", diff)
	}

	if got := nvmlDriverVersion(); got != nvmlVersion {
		t.Errorf("nvmlDriverVersion() = %q, want %q", got, nvmlVersion)
	}

	const unknownAddress = "0000:09:00.0"
	if err := l.addNVLinks(gpusAtPCI(unknownAddress)); err == nil {
		t.Error("addNVLinks with an unknown GPU returned no error")
	}
}

func TestAddNVLinksWithoutLibrary(t *testing.T) {
	t.Setenv(nvmlVariable, "/nowhere/libnvidia-ml.so.1")
	l := Links{Pairs: []Pair{{From: 0, To: 1, NVLink: "unknown"}}}
	if err := l.addNVLinks(gpusAtPCI(nvmlAddresses[0])); err == nil {
		t.Error("addNVLinks without NVML returned no error")
	}

	if l.ActiveNVLinks != nil || l.Pairs[0].NVLink != "unknown" {
		t.Errorf("the links are %+v, want no active links and an unknown connection", l)
	}

	if got := nvmlDriverVersion(); got != "" {
		t.Errorf("nvmlDriverVersion() = %q, want an empty string", got)
	}
}

func TestAddNVLinksWithOldLibrary(t *testing.T) {
	const sourceWithoutQueries = "int nvmlInit_v2(void) { return 0; } " +
		"int nvmlShutdown(void) { return 0; }"
	t.Setenv(nvmlVariable, dltest.Compile(t, "libnvidia-ml.so.1", sourceWithoutQueries))
	var l Links
	if err := l.addNVLinks(gpusAtPCI(nvmlAddresses[0])); err == nil {
		t.Error("addNVLinks with an old library returned no error")
	}

	if l.ActiveNVLinks != nil {
		t.Errorf("the active links are %v, want nil because they are unknown", l.ActiveNVLinks)
	}
}
