# Airflow's own image, and the provider in it. From a folder with the wheel:
#     docker build -f airflow.Dockerfile -t airflow-with-outbox .

FROM apache/airflow:3.3.2
COPY airflow_outbox-*.whl /tmp/
# Naming Airflow's version keeps pip from changing it.
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" /tmp/airflow_outbox-*.whl
