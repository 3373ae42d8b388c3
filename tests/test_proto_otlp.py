# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from gpustrobe.agent import dictionary, encode
from gpustrobe.proto import otlp


def test_an_older_revision_is_refused():
    older = {"stack_index": 1, "values": 2, "attribute_indices": 3, "link_index": 4, "timestamps_unix_nano": 5}
    with pytest.raises(ImportError, match=r"another revision.*opentelemetry-proto>=1\.43"):
        otlp.check_revision(older)


def test_field_numbers_that_the_agent_writes_are_those_of_the_package():
    def numbers(message):
        return {field.name: field.number for field in message.DESCRIPTOR.fields}

    tables = numbers(otlp.ProfilesDictionary)
    assert (
        tables["mapping_table"], tables["location_table"], tables["function_table"],
    ) == (dictionary.MAPPINGS, dictionary.LOCATIONS, dictionary.FUNCTIONS)  # fmt: skip
    assert (tables["link_table"], tables["string_table"]) == (dictionary.LINKS, dictionary.STRINGS)
    assert (tables["attribute_table"], tables["stack_table"]) == (dictionary.ATTRIBUTES, dictionary.STACKS)
    metric = numbers(otlp.Metric)
    assert (metric["gauge"], metric["sum"]) == (encode.GAUGE, encode.SUM)
    temporality = otlp.AggregationTemporality
    assert encode.DELTA == temporality.AGGREGATION_TEMPORALITY_DELTA
    assert encode.CUMULATIVE == temporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert encode.NO_RECORDED_VALUE == otlp.DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK


def test_method_names_are_those_of_the_services():
    profiles = otlp.ExportProfilesServiceRequest.DESCRIPTOR.file.services_by_name["ProfilesService"]
    metrics = otlp.ExportMetricsServiceRequest.DESCRIPTOR.file.services_by_name["MetricsService"]
    assert otlp.METHODS["profiles"] == f"/{profiles.full_name}/Export"
    assert otlp.METHODS["metrics"] == f"/{metrics.full_name}/Export"
