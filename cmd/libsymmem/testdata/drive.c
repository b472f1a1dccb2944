/* A program in C that drives libsymmem.so: drive SCENARIO, as one rank of symmem launch. */
#include "drive.h"

int rank, size;

static const struct {
	const char *name;
	void (*run)(void);
} scenarios[] = {
	{"sums", sums},       {"groups", groups},           {"pools", pools}, {"pads", pads},
	{"misuse", misuse},   {"freed-order", freed_order}, {"diverge", diverge},
	{"late", late},       {"lost", lost},               {"forks", forks},
	{"threads", threads}, {"signals", signals},         {"exit-live", exit_live},
	{"reopen", reopen},   {"exit-waiting", exit_waiting}, {"plug", plug},
	{"mismatch", mismatch}, {"speed", speed},       {"attach", attach},           {"capture", capture},
	{"norm", norm},       {"pending", pending},         {"panics", panics},
	{"locked", locked},   {"messages", messages},       {"splits", splits},
	{"left-child", left_child}, {"worlds", worlds},         {"worlds-lost", worlds_lost},
	{"gpu-worlds", gpu_worlds}, {"timeouts", timeouts},
	{"waits", waits},
	{"rooted", rooted},     {"route", route},           {"unexplained", unexplained},
};

int main(int argc, char **argv) {
	if (argc != 2) return 2;
	const char *r = getenv("RANK"), *n = getenv("WORLD_SIZE");
	rank = r ? atoi(r) : 0;
	size = n ? atoi(n) : 1;
	for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
		if (strcmp(scenarios[i].name, argv[1]) == 0) {
			scenarios[i].run();
			printf("%s is done\n", argv[1]);
			return 0;
		}
	}
	return 2;
}
