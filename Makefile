# The targets only call scripts; each can be called by itself.
.PHONY: all help setup lib wheel python-lint python-test lines ci

all: wheel

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## what development on Debian needs: compilers, PyTorch, linters
	scripts/setup.sh

lib: ## libsymmem.so, next to the Python package
	python/scripts/library.sh

wheel: ## dist/symmem-*.whl, with the library and the command inside; it needs Go and gcc, and no network
	python/scripts/wheel.sh

python-lint: ## ruff and mypy --strict
	python/scripts/lint.sh

python-test: ## pytest on the host backend, and the wheel in a clean environment
	python/scripts/test.sh

lines: ## lines of Go code by package, outside of tests, without comments and blank lines
	@go run ./internal/house/lines

ci: ## everything that must hold before a change is merged
	.ci/run
