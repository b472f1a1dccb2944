"""Plug-ins that give vLLM and SGLang symmem's collectives, without a change to either engine."""
